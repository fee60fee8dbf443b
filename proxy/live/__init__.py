"""Requests while they run: who shows them, who watches them, who may stop one."""
