from translator.notes import Note


def test_only_what_is_gone_or_clamped_is_lossy():
    fates = ["dropped", "clamped", "renamed", "emulated", "repaired", "ignored"]

    assert [Note("p", fate, "r").lossy for fate in fates] == [True, True, *[False] * 4]
