"""Each safeguard is taken out, one at a time, and then a test must fail.

A safeguard without a test that misses it is either not needed or not tested. ``docs/ablations.md``
shows this table; the last test keeps the two alike.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import aiolock

PACKAGE = Path(aiolock.__file__).parent
ROOT = Path(__file__).parent.parent
LUA = "stores/redis/lua"


@dataclass(frozen=True)
class Safeguard:
    """Some lines of the source, what stands there without them, and the test that misses them."""

    name: str
    file: str
    lines: str
    without: str
    test: str


SAFEGUARDS = (
    Safeguard(
        "compare on release",
        f"{LUA}/release.lua",
        "redis.call('ZREM', HOLDERS, grant) == 0 then\n",
        "redis.call('DEL', HOLDERS) == 0 then\n",
        "test_contract.py::TestRedis::test_release_of_one_grant",
    ),
    Safeguard(
        "release or leave in one script",
        f"{LUA}/take_out.lua",
        "      grant = first\n",
        "      return 0\n",
        "test_cancellation.py::test_acquire_hold_and_release",
    ),
    Safeguard(
        "whoever gives up says so",
        "_engine/acquirer.py",
        "        if attempt.gives_up():\n",
        "        if attempt.gives_up() and False:\n",
        "test_cancellation.py::test_queued_behind_another_client",
    ),
    Safeguard(
        "skip where nobody listens",
        f"{LUA}/listens.lua",
        "or redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2] ~= 0\n",
        "or true\n",
        "test_scripts.py::test_whoever_is_not_counted_is_skipped_and_hears_nothing",
    ),
    Safeguard(
        "… and where one lock is handed over",
        f"{LUA}/hand_over.lua",
        "redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2] == 0 then\n",
        "false then\n",
        "test_scripts.py::test_whoever_is_not_counted_is_skipped_and_hears_nothing",
    ),
    Safeguard(
        "the fence of the holder before, where one lock is handed over",
        f"{LUA}/hand_over.lua",
        "UNCONFIRMED, tonumber(fence))\n",
        "UNCONFIRMED, 0)\n",
        "test_scripts.py::test_fences_grow_when_the_clock_was_set_back[the_holder]",
    ),
    Safeguard(
        "… and where a reader is next",
        f"{LUA}/release_general.lua",
        "  step.floor, step.reply_to = tonumber(grant:match(FENCE_OF)), step.asker\n",
        "  step.reply_to = step.asker\n",
        "test_scripts.py::test_fences_grow_when_the_clock_was_set_back[the_holder_before_a_reader]",
    ),
    Safeguard(
        "counted before spoken to",
        f"{LUA}/listens.lua",
        "redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)[2] ~= 0",
        "redis.pcall('PUBLISH', CHANNELS .. client, 'g') ~= 0",
        "test_scripts.py::test_whoever_is_not_counted_is_skipped_and_hears_nothing",
    ),
    Safeguard(
        "the claim",
        f"{LUA}/hand_over.lua",
        "  local next_fence = grant",
        "  claim = '600000'\n  local next_fence = grant",
        "test_contract.py::TestRedis::test_claim_ends",
    ),
    Safeguard(
        "purge on expiry",
        f"{LUA}/reap.lua",
        "    if claim or not (grant:match(FLAGS_CLIENT) or ''):find('f', 1, true) then\n",
        "    if false then\n",
        "test_contract.py::TestRedis::test_stuck_client_leaves_the_queue",
    ),
    Safeguard(
        "who did not confirm a claim is stuck, whatever its flags",
        f"{LUA}/reap.lua",
        "    if claim or not (grant",
        "    if not (grant",
        "test_contract.py::TestRedis::test_a_claim_that_ends_costs_one_claim",
    ),
    Safeguard(
        "who was downgraded is a holder still",
        f"{LUA}/acquire_general.lua",
        "  local standing = as_shared(waiter) or waiter",
        "  local standing = waiter",
        "test_contract.py::TestRedis::test_a_late_question_of_one_that_was_downgraded",
    ),
    Safeguard(
        "past the dead without waiting",
        f"{LUA}/acquire_general.lua",
        "      if queue and redis.call('EXISTS', QUEUE) == 0 and fits(step, waiter) then\n",
        "      if false then\n",
        "test_contract.py::TestRedis::test_not_waiting_past_the_dead",
    ),
    Safeguard(
        "who waits for a count is in nobody's way",
        f"{LUA}/acquire_general.lua",
        "  local past = rule == '^'\n",
        "  local past = false\n",
        "test_contract.py::TestRedis::test_observers_of_different_speed",
    ),
    Safeguard(
        "what comes too late is not carried out",
        f"{LUA}/late.lua",
        "    return redis.error_reply('LATE ' .. STAMP)\n",
        "",
        "test_scripts.py::test_a_late_copy_changes_nothing",
    ),
    Safeguard(
        "what was given up is buried",
        f"{LUA}/release_general.lua",
        "    give_up(waiter, math.ceil(copies / 1000))\n",
        "",
        "test_scripts.py::test_a_copy_of_what_was_given_up_takes_nothing",
    ),
    Safeguard(
        "fence above the last",
        f"{LUA}/next_fence.lua",
        "  last = math.max(tonumber(last or 0), floor)\n",
        "  last = floor\n",
        "test_scripts.py::test_fences_grow_when_the_clock_was_set_back[the_key]",
    ),
    Safeguard(
        "fence floor",
        f"{LUA}/next_fence.lua",
        "  last = math.max(tonumber(last or 0), floor)\n",
        "  last = tonumber(last or 0)\n",
        "test_scripts.py::test_fences_grow_when_the_clock_was_set_back[the_holder]",
    ),
    Safeguard(
        "an allowed write first",
        f"{LUA}/renew.lua",
        "      redis.call('PEXPIRE', holders, kept)\n",
        "",
        "test_failures_server.py::test_server_full",
    ),
    Safeguard(
        "the dead do not fill the queue",
        f"{LUA}/enqueue.lua",
        "      others_may_fit = remove_dead(waiter:match(CLIENT))\n",
        "",
        "test_scripts.py::test_the_dead_do_not_fill_the_queue",
    ),
    Safeguard(
        "EVAL where EVALSHA is not known",
        "stores/redis/_pipe.py",
        "            self._known.discard(command.script)\n            self._once_more(",
        "            self._fail(",
        "test_failures_server.py::test_scripts_flushed",
    ),
    Safeguard(
        "sent again after a break",
        "stores/redis/_pipe.py",
        "        for command in sorted(again, key=lambda command: command.born):\n",
        "        for command in []:\n",
        "test_wire.py::test_what_was_under_way_is_sent_again",
    ),
    Safeguard(
        "a release sent twice is no loss",
        "stores/redis/_scripts.py",
        'Script("release", _was, lambda was: _was(was) or WAS_UNKNOWN)',
        'Script("release", _was)',
        "test_failures_links.py::test_reply_to_release_lost",
    ),
    Safeguard(
        "ask again after a lost reply",
        "stores/redis/_store.py",
        "            self._inbox.reconnected()\n",
        "            pass\n",
        "test_failures_links.py::test_hand_off_lost_with_the_reply",
    ),
    Safeguard(
        "deadline from before the send",
        "_engine/acquisition.py",
        "            deadline = question.sent + lasts(lease)\n",
        "            deadline = asyncio.get_running_loop().time() + lasts(lease)\n",
        "test_waiting.py::test_a_store_too_slow_for_the_ttl_is_an_error",
    ),
    Safeguard(
        "the push counts from before the question",
        "_engine/acquisition.py",
        "        return min(latest, now) + lasts(lease)\n",
        "        return now + lasts(lease)\n",
        "test_waiting.py::test_a_late_push_is_given_back_and_asked_for_again_in_that_order",
    ),
    Safeguard(
        "a run of a period begins only once its grant is confirmed",
        "_engine/acquisition.py",
        "        return self.policy.every is not None and self.grant.claim\n",
        "        return False\n",
        "test_waiting.py::test_a_claim_that_an_answer_tells_of_is_confirmed[True]",
    ),
    Safeguard(
        "a late grant is not entered",
        "_engine/acquisition.py",
        "        return self.policy.passes or (now < grant.deadline and grant.fence > self.void)\n",
        "        return True\n",
        "test_waiting.py::test_a_grant_given_back_is_not_entered_by_its_late_push",
    ),
    Safeguard(
        "given back before asked again",
        "_engine/acquirer.py",
        "            await released\n",
        "            pass\n",
        "test_waiting.py::test_a_late_push_is_given_back_and_asked_for_again_in_that_order",
    ),
    Safeguard(
        "void grants",
        "_engine/acquisition.py",
        "        if fence <= self.void or self.phase not in (",
        "        if self.phase not in (",
        "test_waiting.py::test_a_grant_given_back_is_not_entered_by_its_late_push",
    ),
    Safeguard(
        "a hold whose question crossed is released whatever it is",
        "_engine/watchdog.py",
        "                fence = 0 if hold.crossed else hold.fence\n",
        "                fence = hold.fence\n",
        "test_waiting.py::test_a_push_that_overtakes_the_answer_to_an_earlier_question",
    ),
    Safeguard(
        "ask again after resubscribing",
        "_engine/waiters.py",
        "    def reconnected(self) -> None:\n",
        "    def reconnected(self) -> None:\n        return\n",
        "test_waiting.py::test_what_the_answer_under_way_may_not_know_is_asked_once_more",
    ),
    Safeguard(
        "ask once more after an outdated answer",
        "_engine/waiters.py",
        "            if question.outdated:\n                self._ask_again(attempt)\n",
        "            if False:\n                pass\n",
        "test_waiting.py::test_what_the_answer_under_way_may_not_know_is_asked_once_more",
    ),
    Safeguard(
        "what may come once more is released whatever it is",
        "_engine/waiters.py",
        "                attempt.sends_again()\n",
        "",
        "test_protocol.py::test_the_client_of_the_model_is_the_real_one[0]",
    ),
    Safeguard(
        "ask when the lease ends",
        "_engine/backstop.py",
        "                if due and attempt.question is None:\n",
        "                if False:\n",
        "test_waiting.py::test_a_displaced_waiter_lets_the_others_ask_again",
    ),
    Safeguard(
        "a grant nobody waits for goes back",
        "_engine/waiters.py",
        "            _ = self._watchdog.releases.release(name, waiter, form, CLAIM, fence=fence)\n",
        "            pass\n",
        "test_waiting.py::test_a_grant_for_somebody_who_gave_up_is_given_back",
    ),
    Safeguard(
        "a release that failed is sent again",
        "_engine/releases.py",
        "                self._timer = self._loop.call_later(self._pause, self._try_again)\n",
        "                pass\n",
        "test_waiting.py::test_a_release_that_failed_is_sent_again_until_it_is_answered",
    ),
    Safeguard(
        "… for the same grant",
        "_engine/releases.py",
        "            _ = self._send(release, until)\n",
        "            _ = self._send(release._replace(fence=0), until)\n",
        "test_waiting.py::test_a_release_of_another_grant_that_failed_does_not_end_the_body",
    ),
    Safeguard(
        "the displaced call the others",
        "_engine/waiters.py",
        "            if attempt.last_asked < found:\n",
        "            if False:\n",
        "test_waiting.py::test_a_displaced_waiter_lets_the_others_ask_again",
    ),
    Safeguard(
        "the local deadline",
        "_engine/watchdog.py",
        "            self.lose(hold, LossReason.EXPIRED)\n            return\n",
        "            return\n",
        "test_lease.py::test_at_risk_and_lost",
    ),
    Safeguard(
        "unknown is not refused",
        "_engine/watchdog.py",
        "            doubt = unknown or (not still and self.runs.in_doubt(hold))\n",
        "            still, doubt = still and not unknown, False\n",
        "test_lease.py::test_at_risk_and_back",
    ),
    Safeguard(
        "the alarm is for the first that is due",
        "_engine/wheel.py",
        "            if self._order:\n                self._arm(self._order[0], now)\n",
        "            if self._order and self._timer is None:\n"
        "                self._arm(self._order[0], now)\n",
        "test_watchdog.py::test_a_long_lease_put_off_does_not_delay_a_short_one",
    ),
    Safeguard(
        "a loss cancels the body",
        "_engine/scope.py",
        '            if not self.task.cancel(f"{self.lease._hold.policy.called} was lost"):\n',
        "            if False:\n",
        "test_lease.py::test_loss_cancels_the_body",
    ),
    Safeguard(
        "the outermost body of a task ends them all",
        "_engine/scope.py",
        "        self._inner = hold.bodies != () and any(",
        "        self._inner = False and any(",
        "test_watchdog.py::test_nested_bodies_of_one_task_are_cancelled_once",
    ),
    Safeguard(
        "closed after a release",
        f"{LUA}/release_general.lua",
        "  if closes and close(step, grant) and exclusive then\n",
        "  if false then\n",
        "test_contract.py::TestRedis::test_closed_from_the_grant",
    ),
    Safeguard(
        "what was not entered does not close",
        f"{LUA}/release_general.lua",
        "  if closes and close(step, grant) and exclusive then\n",
        "  if close(step, grant) and exclusive then\n",
        "test_contract.py::TestRedis::test_not_closed_by_what_was_not_entered",
    ),
    Safeguard(
        "closed after a loss",
        f"{LUA}/end_grant.lua",
        "  close(step, grant, ended, claim)\n",
        "",
        "test_contract.py::TestRedis::test_closed_after_a_loss",
    ),
    Safeguard(
        "what is closed is not broken open",
        f"{LUA}/break.lua",
        " and grant:match(CLIENT) ~= NOBODY then\n",
        " then\n",
        "test_contract.py::TestRedis::test_closed_after_a_break",
    ),
    Safeguard(
        "what is done is remembered",
        f"{LUA}/finish.lua",
        "redis.call('ZADD', HOLDERS, NOW + remembered, done)\n",
        "",
        "test_contract.py::TestRedis::test_finish",
    ),
    Safeguard(
        "whoever waits for it is told",
        f"{LUA}/finish.lua",
        "      redis.pcall('PUBLISH', CHANNELS .. client, 'd ' .. HOLDERS)\n",
        "",
        "test_contract.py::TestRedis::test_finish",
    ),
    Safeguard(
        "whoever did not hear it is told",
        "_engine/waiters.py",
        "        if self.hear(attempt, question) and attempt.phase is not Phase.QUEUED:\n",
        "        if self.hear(attempt, question) and attempt.phase is Phase.GRANTED:\n",
        "test_once.py::test_the_word_that_it_is_done_is_lost",
    ),
    Safeguard(
        "a periodic job goes behind the others",
        "_locks/periodic.py",
        "                    await self._once(job)\n",
        "                    while True:\n"
        "                        await self._once(job)\n"
        "                        await asyncio.sleep(60)\n",
        "test_periodic.py::test_five_instances_take_turns",
    ),
    Safeguard(
        "whoever waits for it to open is told",
        f"{LUA}/close.lua",
        "    redis.pcall('PUBLISH', CHANNELS .. (first:match(CLIENT) or first), 'd ' .. HOLDERS)\n",
        "",
        "test_contract.py::TestRedis::test_closing_is_told",
    ),
    Safeguard(
        "… and asks how long that will be",
        "_engine/waiters.py",
        "            self._ask_again(self._queues[name].first)\n",
        "            pass\n",
        "test_closed.py::test_min_hold_of_many",
    ),
    Safeguard(
        "a writer is alone",
        f"{LUA}/fits.lua",
        "  return waiter:byte() == SHARED and first[1]:byte() == SHARED\n",
        "  return true\n",
        "test_contract.py::TestRedis::test_readers_share",
    ),
    Safeguard(
        "a writer that waits holds back readers",
        f"{LUA}/acquire_general.lua",
        "  local queue = redis.call('EXISTS', QUEUE) == 1\n",
        "  local queue = false\n",
        "test_contract.py::TestRedis::test_readers_do_not_starve_a_writer",
    ),
    Safeguard(
        "whoever leaves the queue lets others through",
        f"{LUA}/release_general.lua",
        "    advance(step)\n    return 2\n",
        "    return 2\n",
        "test_contract.py::TestRedis::test_a_writer_that_gives_up_holds_nobody_back",
    ),
    Safeguard(
        "a reader's fence can be found",
        f"{LUA}/grant_shared.lua",
        "waiter .. ':' .. fence, fence, waiter)\n",
        "waiter .. ':' .. fence)\n",
        "test_contract.py::TestRedis::test_reader_asks_again",
    ),
    Safeguard(
        "the holders live as long as the longest of them",
        f"{LUA}/renew.lua",
        "        kept = math.max(kept, redis.call('PTTL', holders))\n",
        "",
        "test_scripts.py::test_the_holders_live_as_long_as_the_longest_of_them",
    ),
    Safeguard(
        "permits are counted back",
        f"{LUA}/drop.lua",
        "    count_permits(step, grant, -1)\n",
        "",
        "test_contract.py::TestRedis::test_permits",
    ),
    Safeguard(
        "permits are counted while closed",
        f"{LUA}/close.lua",
        "  count_permits(step, closed, 1)\n",
        "",
        "test_contract.py::TestRedis::test_permits_that_stay_closed",
    ),
    Safeguard(
        "all declare the same limit",
        f"{LUA}/acquire_general.lua",
        "    return {5, known}\n",
        "",
        "test_contract.py::TestRedis::test_other_limits",
    ),
    Safeguard(
        "a token counts once",
        f"{LUA}/post.lua",
        "redis.call('ZADD', HOLDERS, 'NX', COUNTERS, token)",
        "redis.call('ZADD', HOLDERS, 'NX', COUNTERS, token .. STAMP)",
        "test_contract.py::TestRedis::test_count",
    ),
    Safeguard(
        "an answer tells of a claim that it is one",
        f"{LUA}/acquire_taken.lua",
        "    local claim = first[2] % 1 == UNCONFIRMED and 1 or 0\n",
        "    local claim = 0\n",
        "test_contract.py::TestRedis::test_a_claim_that_is_asked_for",
    ),
    Safeguard(
        "… and its waiter takes it for one",
        "_engine/acquisition.py",
        "            claim = claim or lease < self.policy.lease\n",
        "            claim = lease < self.policy.lease\n",
        "test_waiting.py::test_a_claim_that_an_answer_tells_of_is_confirmed[True]",
    ),
    Safeguard(
        "a script goes in full once on a connection",
        "stores/redis/_pipe.py",
        "        self._known.add(script)\n",
        "",
        "test_redis_pipe.py::test_a_crowd_sends_a_script_once",
    ),
    Safeguard(
        "a link on which replies come is not dead",
        "stores/redis/_pipe.py",
        "now - max(self._sent[0].sent, self._heard_at) >= REPLY_TIMEOUT",
        "now - self._sent[0].sent >= REPLY_TIMEOUT",
        "test_redis_pipe.py::test_a_link_that_is_slow_is_not_dead",
    ),
    Safeguard(
        "what closes the lock outlives the lease",
        f"{LUA}/grant_exclusive.lua",
        "lease + KEPT + outlives(waiter)",
        "lease + KEPT",
        "test_scripts.py::test_what_closes_the_lock_outlives_the_lease[@86400000-x]",
    ),
    Safeguard(
        "… also of who found it free",
        "stores/redis/_store.py",
        "bulk(ttl + KEPT + closes)",
        "bulk(ttl + KEPT)",
        "test_scripts.py::test_what_closes_the_lock_outlives_the_lease_of_who_found_it_free",
    ),
    Safeguard(
        "… also once it was renewed",
        f"{LUA}/renew.lua",
        "ttl + KEPT + outlives(grant)",
        "ttl + KEPT",
        "test_scripts.py::test_what_closes_the_lock_outlives_the_lease[@86400000-x]",
    ),
    Safeguard(
        "a loss that overtakes its grant is asked about",
        "_engine/waiters.py",
        "            self._ask_again(waiting)\n",
        "",
        "test_waiting.py::test_a_break_that_overtakes_the_push_of_the_grant",
    ),
    Safeguard(
        "whoever comes looks who holds them back",
        f"{LUA}/acquire_general.lua",
        "    due = not client or not listens(client, flags, step.asker)\n",
        "",
        "test_contract.py::TestRedis::test_a_dead_writer_holds_nobody_back",
    ),
    Safeguard(
        "who makes room in the queue lets in those behind the dead",
        f"{LUA}/enqueue.lua",
        "      others_may_fit = remove_dead(waiter:match(CLIENT))\n",
        "      remove_dead(waiter:match(CLIENT))\n",
        "test_contract.py::TestRedis::test_a_dead_writer_in_a_full_queue_holds_nobody_back",
    ),
    Safeguard(
        "when one has entered, the next asks for the others' leases",
        "_engine/backstop.py",
        "(min(SOON, ends) if shares else ends)",
        "ends",
        "test_semaphore.py::test_permits_come_back_when_each_lease_ends",
    ),
    Safeguard(
        "who is gone is not of the group",
        f"{LUA}/fits.lua",
        "      remove_dead(step.asker)\n",
        "",
        "test_contract.py::TestRedis::test_group_of_the_living",
    ),
    Safeguard(
        "a downgraded grant is found by its name",
        f"{LUA}/renew.lua",
        "    grant = as_shared(grant)\n",
        "",
        "test_contract.py::TestRedis::test_downgrade",
    ),
    Safeguard(
        "whoever passes late passes",
        "_engine/acquisition.py",
        "        return self.policy.passes or (now < grant.deadline and grant.fence > self.void)\n",
        "        return now < grant.deadline and grant.fence > self.void\n",
        "test_meeting.py::test_barrier_that_is_passed_while_the_process_is_stuck",
    ),
    Safeguard(
        "no upgrade",
        "_engine/acquirer.py",
        "        if (held.shared or held.policy.shared) and not policy.shared:\n",
        "        if False:\n",
        "test_rwlock.py::test_no_upgrade",
    ),
    Safeguard(
        "an old leader's word is not the new one's",
        "_locks/election.py",
        "        if fence == str(holder.fence):\n",
        "        if True:\n",
        "test_election.py::test_the_value_of_the_leader_before",
    ),
    Safeguard(
        "sorted names",
        "_locks/multilock.py",
        "sorted(locks, key=lambda lock: lock.name)",
        "list(locks)",
        "test_multi.py::test_opposite_orders",
    ),
    Safeguard(
        "a turn between answer and task",
        "stores/memory.py",
        "        self._loop.call_soon(_resolve, future, answer)\n",
        "        _resolve(future, answer)\n",
        "test_cancellation.py::test_acquire_hold_and_release",
    ),
    Safeguard(
        "who is next in a client has the deadline of the one before",
        "_engine/runs.py",
        "deadline = min(hold.deadline, self._time() + lasts(claim))\n",
        "deadline = self._time() + lasts(claim)\n",
        "test_runs.py::test_the_deadline_is_that_of_the_one_before",
    ),
    Safeguard(
        "reported before anything else is said",
        "_engine/runs.py",
        "        if run is not None and (run.unsent or run.failed):\n            self._send(run)\n",
        "        pass\n",
        "test_runs.py::test_a_run_is_reported_in_one_command",
    ),
    Safeguard(
        "the confirmation moves the deadline",
        "_engine/runs.py",
        "                hold.deadline = max(hold.deadline, batch.sent + "
        "lasts(batch.form.claim))\n",
        "                pass\n",
        "test_runs.py::test_the_deadline_is_that_of_the_one_before",
    ),
    Safeguard(
        "not handed to who is just cancelled",
        "_engine/runs.py",
        "        if not attempt.waits or attempt.question is not None:\n",
        "        if attempt.question is not None:\n",
        "test_runs.py::test_who_is_cancelled_at_that_moment_is_not_handed_it",
    ),
    Safeguard(
        "not handed on near its end",
        "_engine/runs.py",
        "        return self._time() + form.claim / 1000 / _MARGIN < hold.deadline\n",
        "        return True\n",
        "test_runs.py::test_a_deadline_that_is_near_is_not_handed_on",
    ),
    Safeguard(
        "handed on between those of one form",
        "_engine/runs.py",
        "        if not same or not form.plain or",
        "        if not form.plain or",
        "test_runs.py::test_what_is_not_handed_on[False-another_claim]",
    ),
    Safeguard(
        "only a plain lock is handed on",
        "_engine/runs.py",
        "        if not same or not form.plain or",
        "        if not same or",
        "test_runs.py::test_what_is_not_handed_on[True-not_renewed]",
    ),
    Safeguard(
        "what is being shortened is not handed on",
        "_engine/runs.py",
        " or hold.ceiling is not None:\n",
        ":\n",
        "test_runs.py::test_a_lease_that_is_being_shortened_is_not_handed_on",
    ),
    Safeguard(
        "who gives up leaves no gap",
        "_engine/runs.py",
        "            if before is not None:\n                run.behind[before] = after\n",
        "            if False:\n                run.behind[before] = after\n",
        "test_runs.py::test_who_gives_up_leaves_no_gap",
    ),
    Safeguard(
        "one of our own that is more urgent",
        "_engine/runs.py",
        "                run.behind.clear()  # it has come before some of the others\n",
        "                pass\n",
        "test_runs.py::test_who_is_more_urgent_is_not_overtaken",
    ),
    Safeguard(
        "who stands where is forgotten with the connection",
        "_engine/waiters.py",
        "        self._runs.nobody_knows()\n",
        "",
        "test_runs.py::test_after_a_break_of_a_connection_nobody_knows_who_stands_where",
    ),
    Safeguard(
        "who comes back before another is told of",
        "stores/machine.py",
        "                self.pushes.append(PushVoid(behind))\n",
        "                pass\n",
        "test_runs.py::test_who_comes_back_between_two_is_not_overtaken",
    ),
    Safeguard(
        "… by the scripts too",
        "stores/redis/lua/enqueue.lua",
        "    void(waiter)\n",
        "",
        "test_contract.py::TestRedis::test_who_comes_back_between_two_is_told_of",
    ),
    Safeguard(
        "the fence after what may have been handed on",
        "stores/machine.py",
        "        self.fence = max(self.fence, holder.grant.fence + RUN)\n",
        "",
        "test_runs.py::test_what_was_broken_had_been_handed_on[True]",
    ),
    Safeguard(
        "… where nobody is granted it at once",
        "stores/redis/lua/break.lua",
        "  keep_floor(step)\n",
        "",
        "test_scripts.py::test_the_fence_above_a_run_is_kept",
    ),
    Safeguard(
        "nothing is handed on after a report that failed",
        "_engine/runs.py",
        "if self._closed or run.failed or len",
        "if self._closed or len",
        "test_runs.py::test_after_a_report_that_failed_nothing_is_handed_on",
    ),
    Safeguard(
        "a report that is sent again may be old",
        "_engine/runs.py",
        "        if was == WAS_ABSENT and batch.again:\n",
        "        if False:\n",
        "test_runs.py::test_a_report_that_is_sent_again_may_be_old",
    ),
    Safeguard(
        "a report that is refused is a loss",
        "_engine/runs.py",
        "            self._refused(run, batch)\n",
        "            pass\n",
        "test_runs.py::test_what_was_broken_had_been_handed_on[False]",
    ),
    Safeguard(
        "what the store has not heard of is not lost",
        "_engine/watchdog.py",
        "            doubt = unknown or (not still and self.runs.in_doubt(hold))\n",
        "            doubt = unknown\n",
        "test_runs.py::test_what_the_store_has_not_heard_of_is_not_lost",
    ),
    Safeguard(
        "what was handed on is not released",
        "_engine/watchdog.py",
        "if not hold.finishes and not hold.passed:",
        "if not hold.finishes:",
        "test_runs.py::test_a_report_that_failed_is_sent_again[True]",
    ),
    Safeguard(
        "a client is not too far ahead",
        "_engine/runs.py",
        " or len(run.passed) >= RUN:",
        ":",
        "test_runs.py::test_a_client_is_not_too_far_ahead",
    ),
    Safeguard(
        "a loss is that of who has it now",
        "_engine/waiters.py",
        "    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:\n"
        "        waiter, fence = self._runs.present(name, waiter, fence)\n",
        "    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:\n",
        "test_runs.py::test_what_was_broken_had_been_handed_on[True]",
    ),
    Safeguard(
        "who has it now is asked for it",
        "_engine/waiters.py",
        "    def requested(self, name: str, waiter: Waiter, fence: int) -> None:\n"
        "        waiter, fence = self._runs.present(name, waiter, fence)\n",
        "    def requested(self, name: str, waiter: Waiter, fence: int) -> None:\n",
        "test_runs.py::test_who_is_asked_for_it_is_who_has_it",
    ),
    Safeguard(
        "who asks again lets others in",
        "stores/redis/lua/acquire_general.lua",
        "      advance(step) -- those that ended may have held back others\n",
        "",
        "test_contract.py::TestRedis::test_who_asks_again_lets_others_in",
    ),
    Safeguard(
        "each run is one of its own",
        "_engine/runs.py",
        "        if not chain.fence or (chain.present.waiter, chain.fence) != "
        "(hold.waiter, hold.fence):\n",
        "        if not chain.fence:\n",
        "test_runs.py::test_what_is_said_of_one_run_is_not_said_of_the_next",
    ),
    Safeguard(
        "a closed client reports nothing",
        "_engine/runs.py",
        "        if not self._closed and run.timer is None:\n",
        "        if run.timer is None:\n",
        "test_runs.py::test_a_closed_client_reports_nothing",
    ),
    Safeguard(
        "what was not handed on leaves the queue",
        "_engine/runs.py",
        "            if had == fence and attempt.waiter not in self._holds:\n",
        "            if False:\n",
        "test_runs.py::test_what_was_not_handed_on_leaves_the_queue",
    ),
    Safeguard(
        "a report is not sent for ever",
        "_engine/runs.py",
        "        if failing > LONGEST:\n",
        "        if False:\n",
        "test_runs.py::test_a_report_is_not_sent_for_ever",
    ),
    Safeguard(
        "one of several that was given up is not queued",
        f"{LUA}/acquire_several.lua",
        "if ticket and #held == 1 and held",
        "if ticket and held",
        "test_scripts.py::test_several_of_which_one_was_given_up",
    ),
    Safeguard(
        "… nor one that holds",
        f"{LUA}/acquire_several.lua",
        "    known = known or ARGV[i] == holder\n",
        "",
        "test_scripts.py::test_several_of_which_one_holds",
    ),
    Safeguard(
        "… and one that waits keeps its place",
        f"{LUA}/acquire_several.lua",
        "unpack(places)) == #ARGV - 6 then",
        "unpack(places)) > 0 then",
        "test_scripts.py::test_several_of_which_one_waits",
    ),
    Safeguard(
        "several do not overtake who has come meanwhile",
        f"{LUA}/acquire_several.lua",
        " and redis.call('ZRANGE', QUEUE, -1, -1)[1] == first then",
        " then",
        "test_scripts.py::test_several_of_which_the_first_waits",
    ),
    Safeguard(
        "behind readers nobody stands directly behind another",
        f"{LUA}/acquire_several.lua",
        " and held[1]:byte() == EXCLUSIVE then",
        " then",
        "test_scripts.py::test_several_beside_readers[True]",
    ),
    Safeguard(
        "who asks together is not overtaken by its own release",
        "stores/redis/_pipe.py",
        "                if self._gathered:\n                    self._write_gathered()\n",
        "",
        "test_redis_pipe.py::test_asked_together_and_released_in_the_same_turn",
    ),
    Safeguard(
        "after a break each asks by itself",
        "stores/redis/_pipe.py",
        "        command.together = 1\n        self._queued[command] = None\n",
        "        self._queued[command] = None\n",
        "test_redis_pipe.py::test_those_that_ask_together_when_the_connection_breaks[False]",
    ),
    Safeguard(
        "the script for several is sent again",
        "stores/redis/_pipe.py",
        "            self._known.discard(ACQUIRE_SEVERAL)\n",
        "            pass\n",
        "test_redis_pipe.py::test_those_that_ask_together_and_the_server_forgot_the_script",
    ),
    Safeguard(
        "a task is not stepped by another",
        "_prompt.py",
        "        if self._step is None or asyncio.current_task(self.get_loop()) is not None:\n",
        "        if self._step is None:\n",
        "test_prompt.py::test_resolved_by_a_task",
    ),
    Safeguard(
        "callbacks of a reply keep their order",
        "_prompt.py",
        "            self._become_ordinary()\n            super().add",
        "            super().add",
        "test_prompt.py::test_others_who_wait_for_it_keep_their_order[False]",
    ),
    Safeguard(
        "who waits asks instead of a heartbeat",
        "stores/redis/_store.py",
        "        self._inbox.beat()\n",
        "",
        "test_redis_connect.py::test_idle_waiters_send_next_to_nothing[one_that_is_next]",
    ),
    Safeguard(
        "what ends the loop does not end the reading of a socket",
        "_prompt.py",
        "            except (SystemExit, KeyboardInterrupt) as error:\n",
        "            except ZeroDivisionError as error:\n",
        "test_prompt.py::test_what_ends_the_loop_is_not_raised_where_it_was_resolved",
    ),
    Safeguard(
        "nobody goes on at once behind one that waits for the next turn",
        "stores/redis/_pipe.py",
        "            self._scheduled = True\n",
        "",
        "test_redis_pipe.py::test_answers_are_heard_in_the_order_in_which_they_come",
    ),
    Safeguard(
        "what was kept back was never written",
        "stores/redis/_pipe.py",
        "                self._first.setdefault(command.waiter, []).append(command)\n",
        "                pass\n",
        "test_redis_pipe.py::test_a_question_that_was_kept_back_was_never_written",
    ),
    Safeguard(
        "a report that fails is sent less and less often",
        "_engine/runs.py",
        "max(FIRST_PAUSE, failing / 2)",
        "FIRST_PAUSE",
        "test_runs.py::test_a_report_is_not_sent_for_ever",
    ),
)


@pytest.mark.skipif(PACKAGE.parent != ROOT, reason="on the tree only: it is the same source")
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name.replace(" ", "_"))
def test_a_test_fails_without(safeguard: Safeguard, tmp_path: Path) -> None:
    """The test that is named passes with the safeguard, elsewhere, and fails without it, here."""
    copy = tmp_path / "aiolock"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = (copy / safeguard.file).read_text("utf-8")
    assert source.count(safeguard.lines) == 1, "the safeguard has moved: bring the table up to date"
    changed = source.replace(safeguard.lines, safeguard.without)
    (copy / safeguard.file).write_text(changed, "utf-8")
    test = [sys.executable, "-m", "pytest", f"tests/{safeguard.test}", "-q", "-x"]
    # With no plugin but those it needs: most of its time goes into starting.
    options = ["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    options += ["--timeout=3", "-W", "default"]
    ran = subprocess.run(
        [*test, *options, "-o", f"pythonpath={tmp_path} {ROOT}"],
        cwd=ROOT,
        # The ablated copy goes before the real one.
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert ran.returncode == 1, f"nobody misses it:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"


def test_the_docs_show_this_table() -> None:
    """Each safeguard stands in the docs, with the test that misses it."""
    page = (ROOT / "docs" / "ablations.md").read_text("utf-8")
    for safeguard in SAFEGUARDS:
        row = f"| {safeguard.name} | `{safeguard.file}` | `{safeguard.test}` |"
        assert row in page, f"docs/ablations.md lacks: {row}"
    assert page.count("\n| ") == len(SAFEGUARDS) + 2
