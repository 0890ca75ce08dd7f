"""Whatever is in a config, an override, a table or a run directory, a command ends in time and with a sentence.

`make fuzz` does many more, in processes of limited memory.
"""

from pathlib import Path

import pytest

from tests.hostile.cases import Fuzzer

CASES = 200


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    found = Fuzzer(Path(tmp_path_factory.mktemp("fuzz")))
    found.prepare()
    return found


# A run that takes too long gets a Ctrl-C, which may strike in a destructor, where Python can only warn.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.heavy
@pytest.mark.parametrize("part", range(4))
def test_hostile_cases_end_with_a_sentence(part: int, fuzzer: Fuzzer) -> None:
    for number in range(part * CASES // 4, (part + 1) * CASES // 4):
        assert fuzzer.run(number, seed=0) is None
