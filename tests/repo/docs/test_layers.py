"""The picture of the import layers shows the imports of the source, and refuses a cycle."""

import importlib
from xml.etree import ElementTree as ET

import grimp
import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def layers(repository, monkeypatch):
    monkeypatch.syspath_prepend(repository / "docs/generate")
    return importlib.import_module("layers")


@pytest.mark.slow  # grimp reads all modules
def test_the_imports_are_those_that_import_linter_reads(layers):
    graph = grimp.build_graph(*layers.PACKAGES, cache_dir=None)

    found = layers.module_imports(layers.module_names())

    assert set(found) == graph.modules
    assert found == {name: graph.find_modules_directly_imported_by(name) for name in found}


def test_a_module_beside_the_folders_has_no_box_but_its_imports_count(layers):
    imports = {"p": set(), "p.a": set(), "p.a.x": {"p.glue"}, "p.glue": {"p.b"}, "p.b": set()}

    graph = layers.folder_imports(imports, {"p", "p.a", "p.b"}, opened={"p"})

    assert graph == {"p.a": {"p.b"}, "p.b": set()}


@pytest.mark.parametrize(
    "imports",
    [
        {"p.a.x": {"p.b.y"}, "p.b.y": {"p.a.z"}, "p.a.z": set()},
        {"p.a.x": {"p.glue"}, "p.glue": {"p.a.z"}, "p.a.z": set()},
    ],
    ids=["between folders", "through a module"],
)
def test_a_cycle_is_refused(layers, imports):
    with pytest.raises(layers.LayerError, match=r"import cycle .*p\.a -> .* -> p\.a"):
        layers.folder_imports(imports, {"p", "p.a", "p.b"}, opened={"p"})


def test_an_arrow_that_a_longer_path_implies_is_left_out(layers):
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}

    assert layers.transitive_reduction(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_an_import_of_the_package_above_is_refused(layers):
    with pytest.raises(layers.LayerError, match=r"translator\.b -> proxy\.a"):
        layers.stacked_rows({"proxy.a": set(), "translator.b": {"proxy.a"}})


def test_the_picture_has_a_title_a_description_and_a_box_for_each_folder(layers, repository):
    root = ET.fromstring(layers.layers_svg())  # noqa: S314 - generated here
    names = {text.text for text in root.iter(f"{SVG}text")}
    folders = {
        path.name
        for package in layers.PACKAGES
        for path in (repository / package).iterdir()
        if (path / "__init__.py").exists() and f"{package}.{path.name}" not in layers.OPENED
    }

    assert root.find(f"{SVG}title").text == "Import layers of proxy and translator"
    assert root.find(f"{SVG}desc").text
    assert len(folders) > 20
    assert folders <= names
