from translator import errors


def test_a_bad_request_error_has_its_path():
    assert str(errors.BadRequest("messages.0", "invalid")) == "messages.0: invalid"
    assert str(errors.BadRequest("", "not JSON")) == "not JSON"


def test_the_tree_in_the_docstring_is_the_tree():
    children = {c.__name__ for c in errors.TranslatorError.__subclasses__()}

    assert all(f"── {name} " in errors.__doc__ for name in children)
    assert errors.__doc__.count("── ") == len(children)
