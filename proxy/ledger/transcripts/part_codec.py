"""Compress and encrypt the stored data of transcripts: parts, manifests and raw streams.

Each datum is encrypted for its own address: a part for its digest, the others for the id of their
request. A part is about a kilobyte, too short to contain many repetitions: with a dictionary of
common texts, parts are an eighth smaller and manifests half as large. Frames that were written
without the dictionary can be decompressed too.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import zstandard

from proxy.encryption.bodies import decrypt, encrypt

pack: Final = msgspec.msgpack.Encoder().encode
unpack: Final = msgspec.msgpack.Decoder().decode

LEVEL: Final = 9  # level 3 is faster, but level 9 makes frames a tenth smaller

WORDS: Final = (
    # A manifest in MessagePack, then parts in JSON; the most frequent texts are at the end.
    b"\x88\xa1v\x01\xa5marks\x91\x93\x94\xa8messages\xcc\xc6\xa7content\x00\x03\x82\xa3ttl\xa21h"
    b"\xa4type\xa9ephemeral\xa6answer\x88\xa2id\xbcmsg_01\xa4type\xa7message\xa4role\xa9assistant"
    b"\xa5model\xafclaude-opus-4-5\xb1claude-sonnet-4-5\xb0claude-haiku-4-5\xa7content\xc0"
    b"\xabstop_reason\xa8end_turn\xaamax_tokens\xa8tool_use\xadstop_sequence\xc0\xa5usage\x86"
    b"\xacinput_tokens\xcd\xbbcache_creation_input_tokens\x00\xb7cache_read_input_tokens\xcd"
    b"\xaecache_creation\x82\xb9ephemeral_5m_input_tokens\x00\xb9ephemeral_1h_input_tokens\x00"
    b"\xadoutput_tokens\xcc\xacservice_tier\xa8standard\xa6target\x85\xa8upstream\xa6openai\xa5model"
    b"\xa7dialect\xa9responses\xa4chat\xa7profile\xa6openai\xaccapabilities\x80\xa3sha\xd9@\xa4said"
    b"\xcc\xca\xa8envelope\x02\xa6fields\x83\xa6system\x91\x03\xa8messages\xdc\x00\xc7\x04\xfd\x06"
    b"\xff\x03\xff\x03\xff\x03\xff\x03\xff\x03\xff\x03\xff\x03\xff\x03\xa5tools\x05"
    b'{"model":"claude-","messages":null,"system":null,"tools":null,"metadata":{"user_id":"user__'
    b'account__session_"},"max_tokens":32000,"thinking":{"type":"adaptive","budget_tokens":31999},'
    b'"output_config":{"effort":"high"},"context_management":{"edits":[]},"temperature":1,'
    b'"tool_choice":{"type":"auto"},"stream":true}'
    b'[{"name":"Bash","description":"Glob","Grep","Write","Task","TodoWrite","WebFetch","WebSearch",'
    b'"input_schema":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",'
    b'"properties":{"file_path":{"type":"string","description":"The absolute path to the file"},'
    b'"limit":{"type":"number"},"array","items":{"boolean","default":false,"enum":["integer"},'
    b'"required":["command"],"additionalProperties":false}},'
    b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"'
    b'{"type":"text","text":"<system-reminder>\\n\\n</system-reminder>","citations":null'
    b'{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"'
    b"package function const return export public static void string this.let var async await "
    b"# ## ```\\n- **https://www. github.com/ /usr/lib/python3 node_modules/ /home/ /src/ test"
    b" .py .ts error: warning: Traceback (most recent call last):\\n  File "
    b'\\", line , in     if not self. is None:\\n        raise ValueError(\\"from import class def'
    b' __init__(self,  for  in  return False\\n True\\n    else:\\n    try:\\n    except \\"\\"\\"'
    b" the and that to of "
    b'{"role":"user","content":[{"type":"text","text":""}]}'
    b'{"role":"assistant","content":[{"type":"text","text":""},{"type":"tool_use","id":"toolu_01'
    b'call_","name":"Edit","input":{"command":"","description":"","pattern":"","path":"",'
    b'"old_string":"","new_string":"","replace_all":false,"offset":"limit":{"file_path":"/"}}]}'
    b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01","content":"     1\\t'
    b'\\n     2\\t    \\n    10\\t        ","is_error":true}]}'
)
"""The dictionary. Do not change these bytes: stored frames cannot be decompressed without them."""

_dictionary: Final = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_dictionary.precompute_compress(level=LEVEL)


def compressor() -> Callable[[bytes], bytes]:
    """Return a compressor for one thread."""
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=_dictionary).compress


def decompress(frame: bytes) -> bytes:
    """Decompress a frame. Raises ``zstandard.ZstdError``."""
    return zstandard.ZstdDecompressor(dict_data=_dictionary).decompress(frame)


Compress = Callable[[bytes], bytes]
Stored = bytes | memoryview
"""The value of a binary column; PostgreSQL returns a memoryview."""


def encode_part(compress: Compress, digest: bytes, text: bytes) -> bytes:
    """Return the stored data of a part; ``digest`` is its stored digest."""
    return encrypt(compress(text), b"part:" + digest)


def decode_part(digest: Stored, data: Stored) -> bytes:
    """Return the text of a part. Raises ``zstandard.ZstdError``, MissingBodyKey or DamagedBody."""
    return decompress(decrypt(bytes(data), b"part:" + bytes(digest)))


def encode_manifest(compress: Compress, exchange_id: str, manifest: Mapping[str, Any]) -> bytes:
    return encrypt(compress(pack(manifest)), b"manifest:" + exchange_id.encode())


def decode_manifest(exchange_id: str, data: Stored) -> dict[str, Any]:
    """Return the manifest of a transcript.

    Raises as ``decode_part``, and ``msgspec.MsgspecError``.
    """
    content = decrypt(bytes(data), b"manifest:" + exchange_id.encode())
    manifest: dict[str, Any] = unpack(decompress(content))
    return manifest


def encode_stream(exchange_id: str, compressed: bytes | None) -> bytes | None:
    return None if compressed is None else encrypt(compressed, b"stream:" + exchange_id.encode())


def decode_stream(exchange_id: str, data: Stored) -> bytes:
    """Return the compressed stream. Raises MissingBodyKey or DamagedBody."""
    return decrypt(bytes(data), b"stream:" + exchange_id.encode())
