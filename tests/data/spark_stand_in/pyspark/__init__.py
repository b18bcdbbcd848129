# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Stands in for Spark in tests: the tasks of a barrier stage are threads, and all end when one fails."""

import os
import sys
import threading
import traceback

current = threading.local()


class BarrierTaskContext:
    def __init__(self, number, stage):
        self.number, self.stage = number, stage

    @staticmethod
    def get():
        return current.context

    def partitionId(self):
        return self.number

    def getTaskInfos(self):
        return [None] * self.stage.size

    def allGather(self, message=""):
        return self.stage.gather(self.number, message)


class Stage:
    """A barrier stage of an RDD."""

    def __init__(self, size):
        self.size, self.messages = size, [""] * size
        self.meeting = threading.Barrier(size)

    def barrier(self):
        return self

    def mapPartitions(self, task):
        self.task = task
        return self

    def gather(self, number, message):
        self.meeting.wait()
        self.messages[number] = message
        self.meeting.wait()
        return list(self.messages)

    def run(self, number):
        current.context = BarrierTaskContext(number, self)
        try:
            list(self.task(iter([number])))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # as Spark kills the other tasks

    def collect(self):
        tasks = [threading.Thread(target=self.run, args=[number]) for number in range(self.size)]
        for one in tasks:
            one.start()
        for one in tasks:
            one.join()
        return []


class SparkContext:
    defaultParallelism = 2

    @staticmethod
    def getOrCreate():
        return SparkContext()

    def parallelize(self, numbers, size):
        assert len(list(numbers)) == size
        return Stage(size)

    def stop(self):
        sys.stdout.flush()
        os._exit(0)
