"""What graders report: jobs, failures and time, through the replacement of a process."""

from freerun.reward.grader_counts import GraderCounts
from freerun.types import GradeFailed, Reward


def test_a_report_counts_jobs_failures_and_time_and_forgets_the_slowest() -> None:
    now = [100.0]
    counts = GraderCounts("grader-0", lambda: now[0])
    assert counts.reports(1.0) == []
    counts.note_started()
    for seconds, grade in ((0.5, Reward(1.0, True)), (2.0, GradeFailed("no"))):
        with counts.job() as answers:
            now[0] += seconds
            answers.append((grade,))
    [report] = counts.reports(7.0)
    assert (report.seconds, report.worker) == (7.0, "grader-0")
    assert (report.num_graded, report.num_failed, report.busy_seconds) == (2, 1, 2.5)
    assert (report.slowest_seconds, report.up_seconds) == (2.0, 2.5)
    [later] = counts.reports(8.0)
    assert (later.num_graded, later.slowest_seconds) == (2, 0.0)


def test_what_a_process_did_before_it_was_killed_is_told_before_its_successor() -> None:
    now = [0.0]
    counts = GraderCounts("grader-0", lambda: now[0])
    counts.note_started()
    with counts.job():  # it hangs: there is no answer
        now[0] += 10.0
    now[0] += 1.0
    counts.note_started()
    now[0] += 2.0
    last, first = counts.reports(13.0)
    assert (last.num_graded, last.num_failed, last.up_seconds) == (1, 1, 11.0)
    assert (first.num_graded, first.num_failed, first.up_seconds) == (0, 0, 2.0)
