"""Tasks n + n + 3, with a reward for the right answer and a part for brevity."""

import verifiers.v1 as vf

from sums_v1.servers.adding import AddingToolset


class SumData(vf.TaskData):
    answer: str = ""


class SumTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class SumTask(vf.Task[SumData, vf.State, SumTaskConfig]):
    @classmethod
    def toolsets(cls, config: SumTaskConfig) -> list[vf.Toolset]:
        return [AddingToolset(config.tools)]

    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def is_short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 10)


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 3
    task: SumTaskConfig = SumTaskConfig()


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> list[SumTask]:
        sums = [(f"What is {n} + {n} + 3?", str(2 * n + 3)) for n in range(self.config.num_tasks)]
        return [SumTask(SumData(prompt=prompt, answer=answer), self.config.task) for prompt, answer in sums]
