from __future__ import annotations
import asyncio
from typing import Any
from tests.unit.broker.replicas import *
from tests.unit.broker.test_replication import *
import tests.unit.broker.test_replication as m
for n in list(globals()):
    if n.startswith("test_"): del globals()[n]

def test_x(lab: Any) -> None:
    async def scenario():
        await topic_in_sync(lab)
        who = {"producer_id": 7, "producer_epoch": 0}
        await send(lab, b"a", base_sequence=0, **who)
        await in_sync(lab)
        old = leader_of(lab)
        lab.world.network.cut(address(old))
        await send(lab, b"lost", acks=1, base_sequence=1, **who)
        kill(lab, old)
        lab.world.network.heal()
        await until(lambda: leader_of(lab) not in (old, -1))
        await until(lambda: leading(lab).is_leader)
        await start(lab, old)
        await asyncio.sleep(20)
        print(decided(lab))
        for n in range(3):
            p = replica(lab, n)
            print(n, p.leadership and [(k, f.end_offset, f.broker_epoch) for k,f in p.leadership.followers.items()], p.log.log_end_offset, p.high_watermark, p.log.leader_epochs, values(p), p.registration)
    lab.run(scenario, brokers=3, config=TWO)
