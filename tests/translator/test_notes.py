from translator.notes import Note


def test_only_dropped_and_clamped_notes_are_lossy():
    fates = ["dropped", "clamped", "renamed", "emulated", "repaired", "ignored"]

    assert [Note("p", fate, "r").lossy for fate in fates] == [True, True, *[False] * 4]
