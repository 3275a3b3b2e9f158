"""The stand-in language host finds the program that the engine names."""

from infra.local.plugins.language_host import entry_point


def test_a_folder_means_its_main_module_and_a_file_means_itself(tmp_path):
    (tmp_path / "program").mkdir()
    assert entry_point(str(tmp_path), ".") == tmp_path / "__main__.py"
    assert entry_point(str(tmp_path), "program") == tmp_path / "program" / "__main__.py"
    assert entry_point(str(tmp_path), "main.py") == tmp_path / "main.py"
