"""The rollout worker for backends that start other programs: a guard ends those with the worker."""

from freerun.processes.guard import leave_guard
from freerun.processes.parent import run_worker
from freerun.workers.messages import ToRollout
from freerun.workers.rollout_worker import serve

if __name__ == "__main__":
    leave_guard()
    run_worker(ToRollout, serve)
