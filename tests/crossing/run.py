"""One case, judged: right, or refused as the table says."""

from tests.crossing.case import Case
from tests.crossing.check import Checker, RefusalError, WrongError
from tests.crossing.model import NothingLeftError
from tests.crossing.refusals import applying, matching


def judge(case: Case) -> str | None:
    """None where all batches were right; the name of the row where the case was refused. Raises WrongError otherwise."""
    rows = applying(case)
    try:
        Checker(case).run()
    except RefusalError as refused:
        row = matching(rows, refused)
        if row is None:
            foreseen = [row.name for row in rows] or "nothing of the kind"
            raise WrongError(f"refused, which the table does not foresee ({foreseen}): {refused}") from refused
        return row.name
    except NothingLeftError as error:
        raise WrongError(
            f"there is nothing left to take, but the loader went on; foreseen: {[row.name for row in rows]}"
        ) from error
    sure = [row.name for row in rows if row.sure]
    if sure:
        raise WrongError(f"not refused, though the table says so: {sure}")
    return None
