"""`check_source` passes sources that keep their contracts, and notices each planted fault."""

import shutil
import threading

import pytest

from augury.errors import ModelFileError
from augury.files.atomic_file import AtomicFile
from augury.interfaces import Source
from augury.testing import ContractError, check_source


class Shelf(Source):
    """Copies files that lie elsewhere, in two steps."""

    name = "shelf"
    files = {"tale": b"GGUF" + bytes(1000)}  # noqa: RUF012 - a fake

    @classmethod
    def handles(cls, reference):
        return reference.startswith("shelf:")

    @classmethod
    def names(cls):
        return {"shelf:tale": "a tale"}

    @classmethod
    def fetch(cls, reference, folder, progress):
        data = cls.look_up(reference)
        folder.mkdir(parents=True, exist_ok=True)
        with AtomicFile(folder / "tale.gguf") as out:
            if not (folder / "tale.gguf").is_file():
                progress("copy", 1, 2)
                out.file.write(data)
                progress("copy", 2, 2)
                out.publish()
        return folder / "tale.gguf"

    @classmethod
    def look_up(cls, reference):
        try:
            return cls.files[reference.removeprefix("shelf:")]
        except KeyError as error:
            raise ModelFileError(f"{reference}: no such tale") from error


def mutant(base=Shelf, /, **changed):
    return type("Mutant", (base,), changed)


def test_a_source_that_keeps_its_contracts_passes():
    check_source(Shelf, "shelf:tale", "shelf:none")


Raises = mutant(handles=classmethod(lambda cls, reference: reference[6] == ":" or reference.startswith("shelf:")))
Vague = mutant(handles=classmethod(lambda cls, reference: 1 if reference.startswith("shelf:") else None))
Disowns = mutant(names=classmethod(lambda cls: {"tale": "a tale that it does not handle"}))


class Elsewhere(Shelf):
    @classmethod
    def fetch(cls, reference, folder, progress):
        cls.look_up(reference)
        return folder / "tale.gguf"


Strange = mutant(look_up=classmethod(lambda cls, reference: cls.files[reference.removeprefix("shelf:")]))
Inventive = mutant(look_up=classmethod(lambda cls, reference: cls.files.get(reference.removeprefix("shelf:"), b"")))


class Littering(Shelf):
    @classmethod
    def fetch(cls, reference, folder, progress):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log").write_bytes(b"")
        return super().fetch(reference, folder, progress)


class Forgetful(Shelf):
    @classmethod
    def fetch(cls, reference, folder, progress):
        cls.look_up(reference)
        shutil.rmtree(folder, ignore_errors=True)
        return super().fetch(reference, folder, progress)


class Chatty(Shelf):
    @classmethod
    def fetch(cls, reference, folder, progress):
        cls.look_up(reference)
        progress("look", 1, 1)
        return super().fetch(reference, folder, progress)


class InPlace(Shelf):
    @classmethod
    def fetch(cls, reference, folder, progress):
        data, path = cls.look_up(reference), folder / "tale.gguf"
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with path.open("wb") as out:
                out.write(data[:9])
                progress("copy", 1, 2)
                out.write(data[9:])
        return path


class Scattering(Shelf):
    """Everyone who asks while another copies gets a file of their own."""

    copying = threading.Barrier(4)

    @classmethod
    def fetch(cls, reference, folder, progress):
        data = cls.look_up(reference)
        if threading.current_thread() is threading.main_thread():
            return super().fetch(reference, folder, progress)
        cls.copying.wait()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"tale-{threading.get_ident()}.gguf"
        path.write_bytes(data)
        return path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Raises, "`handles` .*IndexError.* of ''"),
        (Vague, "`handles` .*None of ''"),
        (Disowns, "`handles` .*False of 'tale'"),
        (Elsewhere, "the path of a file"),
        (Strange, "is a ModelFileError, .*KeyError: 'none'"),
        (Inventive, "is a ModelFileError, .*tale.gguf of 'shelf:none'"),
        (Littering, r"leaves nothing.*\['log'\] are left"),
        (Forgetful, "not downloaded again.*was written again"),
        (Chatty, "not downloaded again.*'look' at the second fetch"),
        (InPlace, r"once it is whole.*\['tale.gguf'\] after Ctrl-C"),
        (Scattering, "once it is whole.* 4 fetches"),
    ],
)
def test_a_planted_fault_is_noticed(source, message):
    with pytest.raises(ContractError, match=message):
        check_source(source, "shelf:tale", "shelf:none")
