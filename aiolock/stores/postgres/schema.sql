-- The protocol in PostgreSQL (13 and newer): one function for each operation.
--
-- Read it beside aiolock/stores/machine.py: each function is the method of `Step` of the same name,
-- and tests/proof/test_postgres_model.py compares the two. Each function holds an advisory lock on
-- its name, so they run one after the other; it reads the clock only when it has that lock.
--
-- `aiolock init-db` prints this file, or runs it in one transaction. It is idempotent; and ASCII,
-- which a database of any encoding takes.

-- The functions run with their owner's rights. If another role owned a table, its triggers would
-- have these rights as well.
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_namespace s LEFT JOIN pg_class c ON c.relnamespace = s.oid
        WHERE s.nspname = 'aiolock' AND NOT (pg_get_userbyid(s.nspowner) = current_user
            AND pg_get_userbyid(coalesce(c.relowner, s.nspowner)) = current_user)
    ) THEN
        RAISE EXCEPTION 'the schema aiolock, or something in it, belongs to another role';
    END IF;
END $$;

-- A later version's schema also serves this version, but not the other way round.
DO $$
DECLARE
    found integer := 0;
BEGIN
    IF to_regprocedure('aiolock.protocol()') IS NOT NULL THEN
        EXECUTE 'SELECT aiolock.protocol()' INTO found;
    END IF;
    IF found > 2 THEN
        RAISE EXCEPTION 'the schema aiolock is of protocol %, and this would be protocol 2: use the'
            ' later version of aiolock', found;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS aiolock;

-- Functions that had fewer arguments before: with both, a call by name alone would be ambiguous.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = 'aiolock'::regnamespace AND (p.proname, p.pronargs)
            IN (('release', 6), ('downgrade', 4), ('resize', 7), ('post', 8), ('status', 2),
                ('snapshot', 3), ('_statuses', 2), ('_room', 5), ('_reap', 3), ('_advance', 7),
                ('_remove_dead', 5))
            OR p.pronamespace = 'aiolock'::regnamespace AND (p.proname, p.prorettype) -- returned less
            IN (('_reap', 'boolean'::regtype), ('_remove_dead', 'void'::regtype))
    LOOP
        EXECUTE concat('DROP FUNCTION ', f);
    END LOOP;
END $$;

-- The last fence of a name, and its numbers. A row stays for ten minutes after its last use.
CREATE TABLE IF NOT EXISTS aiolock.names (
    name bytea PRIMARY KEY,
    fence bigint NOT NULL DEFAULT 0,
    -- Kept until `keep_until`, in ms since 1970, and while there is a holder.
    keep_until bigint NOT NULL DEFAULT 0,
    permits bigint, -- or the number that was declared
    declared bigint NOT NULL DEFAULT 0, -- a second number that may be declared since a resize
    count bigint NOT NULL DEFAULT 0,
    tokens text[] NOT NULL DEFAULT '{}',
    value bytea NOT NULL DEFAULT '',
    given_up jsonb, -- what is in `tombstones` now, by "client:seq": of an earlier schema
    resized jsonb, -- token -> [permits before, until when that is remembered]
    later bigint NOT NULL DEFAULT 0, -- when a sweep looks at it again, in ms: it was in use
    bucket bigint[], -- of a rate limit: when it is full (us), and `outdated` and `told` of `Bucket`
    -- The minute since 1970 after which a sweep may forget it. It has an index, and most updates do not
    -- change it: so they need not write to an index.
    due bigint GENERATED ALWAYS AS (greatest(keep_until, fence / 1000 + 600000, later) / 60000) STORED
) WITH (fillfactor = 50);

-- The queue. The columns from `claim` on are the `Form` of the waiter.
CREATE TABLE IF NOT EXISTS aiolock.waiters (
    name bytea NOT NULL,
    ticket bigint NOT NULL,
    client text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    claim bigint NOT NULL,
    shares boolean NOT NULL,
    rule text NOT NULL, -- '', '*' permits, '&' group, '^' count, '|' rate, '=' alike
    number bigint NOT NULL,
    declared bigint NOT NULL,
    fixed boolean NOT NULL,
    once boolean NOT NULL,
    downgrades boolean NOT NULL,
    after_loss bigint NOT NULL,
    after_grant bigint NOT NULL,
    period bigint NOT NULL,
    priority bigint NOT NULL,
    share bytea NOT NULL DEFAULT '', -- empty: none
    weight bigint NOT NULL DEFAULT 1000,
    PRIMARY KEY (name, ticket, client, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The holders. The client '-' has no owner: its grant keeps the name closed (seq 0), or remembers
-- that work is done (seq 1; seq 2: as soon as the transaction that has checked it ends, and until
-- `number` then). A client that begins with '=' is the key of a detached grant.
CREATE TABLE IF NOT EXISTS aiolock.grants (
    name bytea NOT NULL,
    fence bigint NOT NULL,
    client text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    ends bigint NOT NULL, -- ms since 1970; 0 or below: see `_defer`
    shared boolean NOT NULL, -- others that share may enter: from the first, or since a downgrade
    claimed boolean NOT NULL, -- its lease is the claim of a pushed grant, not confirmed yet
    claim bigint NOT NULL,
    shares boolean NOT NULL,
    rule text NOT NULL,
    number bigint NOT NULL,
    declared bigint NOT NULL,
    fixed boolean NOT NULL,
    once boolean NOT NULL,
    downgrades boolean NOT NULL,
    after_loss bigint NOT NULL,
    after_grant bigint NOT NULL,
    period bigint NOT NULL,
    priority bigint NOT NULL,
    share bytea NOT NULL DEFAULT '',
    weight bigint NOT NULL DEFAULT 1000,
    PRIMARY KEY (name, fence)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The accounts of the shares of a name, in each priority: of those that wait, or whose start is
-- remembered. See `_account`.
CREATE TABLE IF NOT EXISTS aiolock.accounts (
    name bytea NOT NULL,
    priority bigint NOT NULL,
    share bytea NOT NULL,
    start bigint NOT NULL, -- the virtual time at which its next grant begins
    held bigint NOT NULL, -- permits
    ticket bigint, -- of its first waiter, as are those below; NULL if none waits
    client text COLLATE "C",
    seq bigint,
    weight bigint NOT NULL,
    rank bigint GENERATED ALWAYS AS (held * 1000000 / weight) STORED,
    PRIMARY KEY (name, priority, share)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The virtual time of each priority, and how many accounts are remembered that do not wait.
CREATE TABLE IF NOT EXISTS aiolock.virtual_times (
    name bytea NOT NULL,
    priority bigint NOT NULL,
    virtual bigint NOT NULL, -- the latest start of a grant
    remembered bigint NOT NULL,
    PRIMARY KEY (name, priority)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Waiters that gave up, and until when, in ms, copies of their questions may come. With a `seq` of
-- -1 or below, a waiter of a rate limit (-1 - seq) that got its tokens, and until when that is remembered.
CREATE TABLE IF NOT EXISTS aiolock.tombstones (
    name bytea NOT NULL,
    client text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    ends bigint NOT NULL,
    PRIMARY KEY (name, client, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Listening clients: the connection on which a client listens holds the advisory lock `key`.
CREATE TABLE IF NOT EXISTS aiolock.clients (
    id text COLLATE "C" PRIMARY KEY,
    key bigint NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    seen timestamptz NOT NULL DEFAULT now()
);

-- The position at which the last sweep has stopped.
CREATE TABLE IF NOT EXISTS aiolock.swept (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bytea NOT NULL DEFAULT '',
    due bigint NOT NULL DEFAULT 0
);

-- The indexes, and the columns that an earlier schema does not have. For these, the tables are locked,
-- all at once, beside clients at work that lock them in any order; so it does not wait for long, which
-- might be a deadlock, and tries again after a pause, in which these clients go on. It gives up if a
-- transaction keeps a table. (If nothing is missing, it locks none.)
DO $$
DECLARE
    missing boolean := EXISTS (SELECT FROM unnest(ARRAY['waiters_by_client', 'waiters_by_share',
            'accounts_in_turn', 'accounts_remembered', 'tombstones_by_end', 'names_by_due',
            'clients_by_seen']) name WHERE to_regclass('aiolock.' || name) IS NULL)
        OR NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = 'aiolock.names'::regclass AND attname = 'bucket');
    until timestamptz := clock_timestamp() + interval '10 seconds';
    waits text := current_setting('lock_timeout');
    done text;
BEGIN
    IF NOT missing THEN
        RETURN;
    END IF;
    LOOP
        BEGIN
            done := set_config('lock_timeout', '100ms', true);
            LOCK TABLE aiolock.names, aiolock.waiters, aiolock.grants, aiolock.accounts,
                aiolock.tombstones, aiolock.clients, aiolock.swept IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF clock_timestamp() > until THEN
                RAISE EXCEPTION 'a table of the schema aiolock is kept by an open transaction, of one'
                    ' of these processes: %', (SELECT string_agg(DISTINCT l.pid::text, ', ')
                    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                    WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relkind = 'r'
                    AND c.relnamespace = 'aiolock'::regnamespace) USING ERRCODE = 'AL008';
            END IF;
            done := pg_sleep(0.1 + 0.2 * random());
        END;
    END LOOP;
    done := set_config('lock_timeout', waits, true);
    IF NOT EXISTS (SELECT FROM pg_attribute
        WHERE attrelid = 'aiolock.names'::regclass AND attname = 'due') THEN
        ALTER TABLE aiolock.names ADD COLUMN later bigint NOT NULL DEFAULT 0;
        ALTER TABLE aiolock.names ADD COLUMN due bigint GENERATED ALWAYS AS
            (greatest(keep_until, fence / 1000 + 600000, later) / 60000) STORED;
        ALTER TABLE aiolock.swept ADD COLUMN due bigint NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute
        WHERE attrelid = 'aiolock.grants'::regclass AND attname = 'share') THEN
        ALTER TABLE aiolock.waiters ADD COLUMN share bytea NOT NULL DEFAULT '';
        ALTER TABLE aiolock.waiters ADD COLUMN weight bigint NOT NULL DEFAULT 1000;
        ALTER TABLE aiolock.grants ADD COLUMN share bytea NOT NULL DEFAULT '';
        ALTER TABLE aiolock.grants ADD COLUMN weight bigint NOT NULL DEFAULT 1000;
    END IF;
    ALTER TABLE aiolock.names ADD COLUMN IF NOT EXISTS bucket bigint[];
    CREATE UNIQUE INDEX IF NOT EXISTS waiters_by_client ON aiolock.waiters (name, client, seq);
    CREATE INDEX IF NOT EXISTS waiters_by_share
        ON aiolock.waiters (name, priority, share, ticket, client, seq) WHERE share <> '';
    CREATE INDEX IF NOT EXISTS accounts_in_turn
        ON aiolock.accounts (name, priority, rank, start, ticket, client, seq)
        WHERE ticket IS NOT NULL;
    CREATE INDEX IF NOT EXISTS accounts_remembered
        ON aiolock.accounts (name, priority, start, share) WHERE ticket IS NULL;
    CREATE INDEX IF NOT EXISTS tombstones_by_end ON aiolock.tombstones (name, ends);
    CREATE INDEX IF NOT EXISTS names_by_due ON aiolock.names (due, name);
    CREATE INDEX IF NOT EXISTS clients_by_seen ON aiolock.clients (seen);
END $$;
INSERT INTO aiolock.swept DEFAULT VALUES ON CONFLICT DO NOTHING;


-- The parts of the operations. In all of them: `n` the name, `us` the clock in microseconds, `me` the
-- client that is answered.
--
-- What an operation costs is for the most part what the server does for each function that it calls
-- and for each query that it runs, however little these do. So a part that is one expression is
-- written in SQL, which becomes a part of the expression that calls it; and what is called for its
-- effect is assigned to `done`, which takes no query, as PERFORM does.

CREATE OR REPLACE FUNCTION aiolock._clock() RETURNS bigint LANGUAGE sql AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Lock this name, and return the time after that. `flushed`: the session belongs to the caller, who
-- sends a `flush` behind the operation, so pushes for others are left to that. Such a push must be
-- one that `notify_again` finds in the tables: the session may end between the two. The two settings
-- are written only where they differ: they last as long as the transaction, and writing one takes
-- longer than reading it.
CREATE OR REPLACE FUNCTION aiolock._lock(n bytea, flushed boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    done text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- An older snapshot could show a lock as free that was taken while we waited.
        RAISE EXCEPTION 'aiolock works at the isolation level read committed, not at %',
            current_setting('transaction_isolation') USING ERRCODE = 'AL001';
    END IF;
    done := pg_advisory_xact_lock(hashtextextended(encode(n, 'hex'), 20));
    IF current_setting('aiolock.own', true) <> '' THEN
        done := set_config('aiolock.own', '', true);
    END IF;
    IF (coalesce(current_setting('aiolock.tells', true), '') = 'true') <> flushed THEN
        done := set_config('aiolock.tells', flushed::text, true);
    END IF;
    RETURN aiolock._clock();
END $$;

-- Forget what was kept of this name, if the time for that is over: before any of it is read, or
-- kept for longer.
CREATE OR REPLACE FUNCTION aiolock._forget(n bytea, us bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE aiolock.names SET permits = NULL, declared = 0, count = 0, tokens = '{}', value = '',
            given_up = NULL, resized = NULL, keep_until = 0, bucket = NULL
        WHERE name = n AND keep_until BETWEEN 1 AND us / 1000;
END $$;

CREATE OR REPLACE FUNCTION aiolock._begin(n bytea, flushed boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    us bigint := aiolock._lock(n, flushed);
    done text := aiolock._forget(n, us);
BEGIN
    RETURN us;
END $$;

-- Whether the listener with this key is there. It holds the key exclusively. A check takes it shared,
-- so that two checks at once do not take each other for the listener.
--
-- The lock is not kept until the transaction ends: one that finds thousands of dead clients would
-- fill the server's table of locks, which is for all databases. In one expression, which nothing
-- interrupts: a lock of the session would outlast a statement that is cancelled.
--
-- Just after a start of the server, clients have not had the time to come back. On both sides of it,
-- as the clock may have been set back since, by a moment or by hours.
CREATE OR REPLACE FUNCTION aiolock._is_held(k bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE WHEN pg_try_advisory_lock_shared(k) THEN NOT pg_advisory_unlock_shared(k)
        ELSE true END
        OR abs(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())) < 5
$$;

-- Whether a client listens.
CREATE OR REPLACE FUNCTION aiolock._listens(c text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    k bigint;
BEGIN
    SELECT key INTO k FROM aiolock.clients WHERE id = c;
    RETURN FOUND AND aiolock._is_held(k);
END $$;

CREATE OR REPLACE FUNCTION aiolock._is_there(c text, me text) RETURNS boolean LANGUAGE sql AS $$
    SELECT c = me OR aiolock._listens(c)
$$;

-- Those of many clients that are not there.
CREATE OR REPLACE FUNCTION aiolock._dead(cs text[], me text) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT c FROM unnest(cs) c LEFT JOIN aiolock.clients x ON x.id = c
        WHERE c <> me AND (x.id IS NULL OR NOT aiolock._is_held(x.key)));
END $$;

-- Whether the holder is a client: its grant is neither reserved nor detached.
CREATE OR REPLACE FUNCTION aiolock._is_client(c text) RETURNS boolean LANGUAGE sql AS $$
    SELECT c <> '-' AND left(c, 1) <> '='
$$;

-- A client as others may see it: the key of a detached grant is a secret.
CREATE OR REPLACE FUNCTION aiolock._shown(c text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN left(c, 1) = '=' THEN '=' ELSE c END
$$;

-- Push to a client. The push for the asking client is in the answer. Those for others are sent by
-- the `flush` that follows or, without one, by a NOTIFY at the commit.
CREATE OR REPLACE FUNCTION aiolock._push(n bytea, c text, me text, what text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    done text;
BEGIN
    IF c = me THEN
        done := set_config('aiolock.own', concat(current_setting('aiolock.own', true), E'\n', what),
            true);
    ELSIF current_setting('aiolock.tells', true) = 'true' THEN
        done := set_config('aiolock.out', concat(current_setting('aiolock.out', true), E'\n', c, ' ',
            what, ' ', encode(n, 'hex')), false);
    ELSE
        done := pg_notify('aiolock:' || c, concat(what, ' ', encode(n, 'hex')));
    END IF;
END $$;

-- The same for many pushes, in order. One after the other, each would copy all those before it.
CREATE OR REPLACE FUNCTION aiolock._push_all(n bytea, cs text[], me text, whats text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    own text;
    others text;
BEGIN
    SELECT string_agg(E'\n' || what, '' ORDER BY place) FILTER (WHERE c = me),
            string_agg(concat(E'\n', c, ' ', what, ' ', encode(n, 'hex')), '' ORDER BY place)
                FILTER (WHERE c <> me)
        INTO own, others FROM unnest(cs, whats) WITH ORDINALITY AS x (c, what, place);
    IF own IS NOT NULL THEN
        PERFORM set_config('aiolock.own', concat(current_setting('aiolock.own', true), own), true);
    END IF;
    IF others IS NULL THEN
        RETURN;
    ELSIF current_setting('aiolock.tells', true) = 'true' THEN
        PERFORM set_config('aiolock.out',
            concat(current_setting('aiolock.out', true), others), false);
    ELSE
        PERFORM pg_notify('aiolock:' || c, concat(what, ' ', encode(n, 'hex')))
            FROM unnest(cs, whats) WITH ORDINALITY AS x (c, what, place)
            WHERE c <> me ORDER BY place;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION aiolock._own() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(current_setting('aiolock.own', true), '')
$$;

-- How many waiters or holders one call looks at, if its client calls `go_on` for the rest, so that
-- others need not wait for long: see `_leave`. NULL: all of them, for clients that do not.
CREATE OR REPLACE FUNCTION aiolock._part() RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('aiolock.in_parts', true) = 'on' THEN PART::bigint END
$$;

-- Leave this to another call, `go_on`, of the client that is answered. If that never comes, as the
-- client ends, then the next call of anyone goes on with the head of the queue.
CREATE OR REPLACE FUNCTION aiolock._leave(rest text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('aiolock.own',
        concat(current_setting('aiolock.own', true), E'\nrest ', rest), true);
END $$;

-- These numbers as bytes.
CREATE OR REPLACE FUNCTION aiolock._bytes(numbers bigint[]) RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT decode(string_agg(lpad(to_hex(b), 2, '0'), '' ORDER BY place), 'hex')
        FROM unnest(numbers) WITH ORDINALITY x (b, place));
END $$;

-- A waiter with this form. Its last numbers are left out if they are what they mostly are: how many
-- bytes its share has, these, and its weight.
CREATE OR REPLACE FUNCTION aiolock._waiter(n bytea, ticket bigint, c text, s bigint, form bigint[])
RETURNS aiolock.waiters LANGUAGE sql AS $$
    SELECT ROW(n, ticket, c, s, form[1], form[2] <> 0,
        CASE form[3] WHEN 0 THEN '' ELSE chr(form[3]::int) END, form[4], form[5], form[6] <> 0,
        form[7] <> 0, form[8] <> 0, form[9], form[10], form[11], form[12],
        CASE WHEN form[13] > 0 THEN aiolock._bytes(form[14:13 + form[13]]) ELSE '' END,
        coalesce(form[14 + form[13]], 1000))::aiolock.waiters
$$;

-- The numbers of a share and its weight at the end of a form.
CREATE OR REPLACE FUNCTION aiolock._numbers(share bytea, weight bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN concat_ws(',', length(share), (SELECT string_agg(get_byte(share, place)::text, ','
        ORDER BY place) FROM generate_series(0, length(share) - 1) place), weight);
END $$;

-- A form, as it is written in a push.
CREATE OR REPLACE FUNCTION aiolock._form(w aiolock.waiters) RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(',', w.claim, w.shares::int, coalesce(ascii(nullif(w.rule, '')), 0), w.number,
        w.declared, w.fixed::int, w.once::int, w.downgrades::int, w.after_loss, w.after_grant,
        w.period, w.priority,
        CASE WHEN w.share <> '' THEN aiolock._numbers(w.share, w.weight) END)
$$;

CREATE OR REPLACE FUNCTION aiolock._keep(n bytea, until bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO aiolock.names AS x (name, keep_until) VALUES (n, until)
        ON CONFLICT (name) DO UPDATE SET keep_until = greatest(x.keep_until, until);
END $$;

-- The number of permits; if it is not known, the declared one becomes it.
CREATE OR REPLACE FUNCTION aiolock._permits(n bytea, d bigint, us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    known bigint;
BEGIN
    SELECT permits INTO known FROM aiolock.names WHERE name = n;
    IF known IS NULL THEN
        INSERT INTO aiolock.names AS x (name, permits, keep_until) VALUES (n, d, us / 1000 + A_MINUTE)
            ON CONFLICT (name) DO UPDATE
            SET permits = d, keep_until = greatest(x.keep_until, us / 1000 + A_MINUTE);
        RETURN d;
    END IF;
    RETURN known;
END $$;

CREATE OR REPLACE FUNCTION aiolock._differs(n bytea, d bigint, us bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN aiolock._permits(n, d, us) <> d
        AND d <> (SELECT declared FROM aiolock.names WHERE name = n);
END $$;

-- The rate for which a number stands, see `Rate` of the client: its interval in us, and its burst.
CREATE OR REPLACE FUNCTION aiolock._rate(d bigint, OUT every bigint, OUT burst bigint)
LANGUAGE sql AS $$
    SELECT (d & 2251799813685247) >> (5 + (d & 31)::int),
        (d & 2251799813685247) >> 5 & (1::bigint << (d & 31)::int) - 1
$$;

-- When the bucket of a rate limit is full again, in us, not before now. If the clock was set back, it is
-- empty now, at the worst; and not at each moment from now on.
CREATE OR REPLACE FUNCTION aiolock._full_at(n bytea, d bigint, us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    r record := aiolock._rate(aiolock._permits(n, d, us));
    full_at bigint := (SELECT bucket[1] FROM aiolock.names WHERE name = n);
BEGIN
    IF full_at > us + r.every * r.burst THEN
        full_at := us + r.every * r.burst;
        UPDATE aiolock.names SET bucket[1] = full_at WHERE name = n;
    END IF;
    RETURN greatest(full_at, us);
END $$;

-- When the tokens of this waiter are there, in us, after `before` others were taken.
CREATE OR REPLACE FUNCTION aiolock._due(n bytea, w aiolock.waiters, before bigint, us bigint)
RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN w.number > r.burst THEN us + KEEP_ALIVE * 1000 -- since a resize
        ELSE aiolock._full_at(n, w.declared, us) + (before + w.number - r.burst) * r.every END
        FROM aiolock._rate(aiolock._permits(n, w.declared, us)) r
$$;

-- Take the tokens of this waiter, which are there, and remember that it got them; two of those that
-- are remembered for long enough go with it. Returns in how many us the bucket is full.
CREATE OR REPLACE FUNCTION aiolock._take(n bytea, w aiolock.waiters, us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    full_at bigint := aiolock._full_at(n, w.declared, us)
        + w.number * (aiolock._rate(aiolock._permits(n, w.declared, us))).every;
    until bigint := us / 1000 + w.claim;
BEGIN
    UPDATE aiolock.names SET bucket = ARRAY[full_at, coalesce(bucket[2], 0), coalesce(bucket[3], 0)],
        keep_until = greatest(keep_until, greatest(full_at / 1000 + 1, until) + A_MINUTE)
        WHERE name = n;
    DELETE FROM aiolock.tombstones WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM aiolock.tombstones WHERE name = n AND ends <= us / 1000
            ORDER BY name, ends LIMIT 2));
    INSERT INTO aiolock.tombstones VALUES (n, w.client, -1 - w.seq, until)
        ON CONFLICT (name, client, seq) DO UPDATE SET ends = excluded.ends;
    RETURN full_at - us;
END $$;

-- A waiter has left the queue of a rate limit without an entry: those in the queue come earlier than
-- they were told, see `_tell_first`.
CREATE OR REPLACE FUNCTION aiolock._moved_up(n bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE aiolock.names SET bucket = ARRAY[coalesce(bucket[1], 0), w.ticket, coalesce(bucket[3], 0)]
        FROM (SELECT ticket FROM aiolock.waiters WHERE name = n
            ORDER BY name DESC, ticket DESC, client DESC, seq DESC LIMIT 1) w
        WHERE name = n;
END $$;

-- Let the first waiter of a rate limit ask, if it was told a later time than that of its tokens; once,
-- and not the one that is answered now. With a share, whoever is next may have been told any time; an
-- answer to its client says it.
CREATE OR REPLACE FUNCTION aiolock._tell_first(n bytea, me text, asking bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    w aiolock.waiters;
    b bigint[] := (SELECT bucket FROM aiolock.names WHERE name = n);
BEGIN
    SELECT * INTO w FROM aiolock.waiters WHERE name = n ORDER BY name, ticket, client, seq LIMIT 1;
    IF w.share <> '' THEN
        w := aiolock._next(n, w);
    END IF;
    IF (w.share <> '' OR w.ticket <= b[2]) AND w.ticket <> coalesce(b[3], 0)
            AND NOT (w.client = me AND (w.seq = asking OR w.share <> '' AND EXISTS (
                SELECT FROM aiolock.waiters WHERE name = n AND client = me AND seq = asking))) THEN
        UPDATE aiolock.names SET bucket = ARRAY[coalesce(b[1], 0), coalesce(b[2], 0), w.ticket]
            WHERE name = n;
        PERFORM aiolock._push(n, w.client, me, concat_ws(' ', 'done', w.seq));
    END IF;
END $$;

-- Give a rate limit another rate: as many tokens are missing as before, but never more than all.
CREATE OR REPLACE FUNCTION aiolock._resize_bucket(n bytea, d bigint, now_ bigint, us bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    missing double precision := (aiolock._full_at(n, d, us) - us)::double precision
        / (aiolock._rate(aiolock._permits(n, d, us))).every;
BEGIN
    UPDATE aiolock.names SET bucket = ARRAY[
            us + least(ceil(missing * r.every), r.every * r.burst)::bigint,
            coalesce(bucket[2], 0), coalesce(bucket[3], 0)]
        FROM aiolock._rate(now_) r WHERE name = n;
    PERFORM aiolock._moved_up(n);
END $$;

-- The shares of a name. Of those with waiters of one priority, the next is the one that holds least
-- for its weight; among equals, the one that starts first, by the virtual time of the priority; among
-- these, the one whose first waiter came first: that is the order of `accounts_in_turn`. A grant moves
-- the start of its share by what it costs, and the virtual time to where it has begun. While no waiter
-- of the priority has a share, there are no accounts, and no virtual time. Beside the queue and the
-- holders, all this is an index: what is lost of it, or wrong in it, lets others come first.

-- Put the account of a share in order: it has paid `cost` for a grant (NULL: none), holds so many
-- permits more, or has another first waiter, or none. Of those that do not wait, only so many are
-- remembered: those that are least ahead of the others are forgotten first. (Without the setting, the
-- planner sorts all accounts of a name while it has not seen how many there may be.)
CREATE OR REPLACE FUNCTION aiolock._account(
    n bytea, p bigint, s bytea, cost bigint, permits bigint
) RETURNS void LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    t aiolock.virtual_times;
    a aiolock.accounts;
    first aiolock.waiters;
    waits boolean;
    known boolean;
    virtual_ bigint;
    most bigint := MOST_AHEAD;
    other record;
BEGIN
    SELECT * INTO first FROM aiolock.waiters
        WHERE name = n AND priority = p AND share = s AND share <> ''
        ORDER BY name, priority, share, ticket, client, seq LIMIT 1;
    waits := FOUND;
    SELECT * INTO a FROM aiolock.accounts WHERE name = n AND priority = p AND share = s;
    known := FOUND;
    IF NOT waits AND NOT known THEN
        RETURN;
    ELSIF permits = 0 AND cost IS NULL
            AND (a.ticket, a.client, a.seq) = (first.ticket, first.client, first.seq) THEN
        RETURN; -- it is another of its waiters that has come, or left
    END IF;
    SELECT * INTO t FROM aiolock.virtual_times WHERE name = n AND priority = p;
    IF NOT FOUND THEN
        INSERT INTO aiolock.virtual_times VALUES (n, p, 0, 0) RETURNING * INTO t;
    END IF;
    virtual_ := t.virtual;
    IF known THEN
        a.held := greatest(a.held + permits, 0);
    ELSE
        a.start := 0;
        a.held := (SELECT coalesce(sum(number), 0) FROM aiolock.grants
            WHERE name = n AND priority = p AND share = s AND rule = '*');
    END IF;
    IF known AND a.ticket IS NULL THEN
        t.remembered := t.remembered - 1;
    END IF;
    IF cost IS NOT NULL THEN
        t.virtual := greatest(a.start, t.virtual);
        a.start := t.virtual + cost;
    ELSIF a.ticket IS NULL AND waits THEN
        a.start := greatest(a.start, t.virtual); -- no credit for the time in which it did not wait
    END IF;
    IF NOT waits AND a.start <= t.virtual THEN
        DELETE FROM aiolock.accounts WHERE name = n AND priority = p AND share = s;
    ELSIF known THEN
        UPDATE aiolock.accounts SET start = a.start, held = a.held, ticket = first.ticket,
                client = first.client, seq = first.seq, weight = coalesce(first.weight, 1000)
            WHERE name = n AND priority = p AND share = s;
    ELSE
        INSERT INTO aiolock.accounts VALUES (n, p, s, a.start, a.held, first.ticket, first.client,
            first.seq, coalesce(first.weight, 1000));
    END IF;
    IF NOT waits THEN
        PERFORM FROM aiolock.accounts WHERE name = n AND priority = p AND ticket IS NOT NULL
            ORDER BY name, priority, rank, start, ticket, client, seq LIMIT 1;
        IF NOT FOUND THEN
            DELETE FROM aiolock.accounts WHERE name = n AND priority = p;
            DELETE FROM aiolock.virtual_times WHERE name = n AND priority = p;
            RETURN;
        ELSIF a.start > t.virtual THEN
            t.remembered := t.remembered + 1;
        END IF;
    END IF;
    IF t.virtual > virtual_ OR t.remembered > most THEN
        FOR other IN SELECT share, start FROM aiolock.accounts
            WHERE name = n AND priority = p AND ticket IS NULL
            ORDER BY name, priority, start, share LIMIT 2
        LOOP
            EXIT WHEN other.start > t.virtual AND t.remembered <= most;
            DELETE FROM aiolock.accounts WHERE name = n AND priority = p AND share = other.share;
            t.remembered := t.remembered - 1;
        END LOOP;
    END IF;
    UPDATE aiolock.virtual_times SET virtual = t.virtual, remembered = t.remembered
        WHERE name = n AND priority = p AND (virtual, remembered) <> (t.virtual, t.remembered);
END $$;

-- The same for these shares, each a priority and a share, of which waiters have left.
CREATE OR REPLACE FUNCTION aiolock._accounts(n bytea, changed text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM aiolock._account(n, split_part(each, ' ', 1)::bigint,
        decode(split_part(each, ' ', 2), 'hex'), NULL, 0) FROM unnest(changed) each;
END $$;

-- A waiter of a share is granted from the queue: the share pays.
CREATE OR REPLACE FUNCTION aiolock._charge(n bytea, w aiolock.waiters) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    number bigint := CASE WHEN w.rule IN ('*', '|') THEN w.number ELSE 1 END;
BEGIN
    PERFORM aiolock._account(n, w.priority, w.share,
        greatest(1, greatest(1, number) * COST * 1000 / w.weight),
        CASE w.rule WHEN '*' THEN w.number ELSE 0 END);
END $$;

-- The grant of a share has ended.
CREATE OR REPLACE FUNCTION aiolock._ended(n bytea, g aiolock.grants) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF g.rule = '*' THEN
        PERFORM aiolock._account(n, g.priority, g.share, NULL, -g.number);
    END IF;
END $$;

-- Forget accounts of a name, not too many at once, and, when all are gone, its virtual times; returns
-- how many.
CREATE OR REPLACE FUNCTION aiolock._forget_accounts(n bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM aiolock.accounts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM aiolock.accounts WHERE name = n
            ORDER BY name, priority, share LIMIT PART));
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed < PART THEN
        DELETE FROM aiolock.virtual_times WHERE name = n;
    END IF;
    RETURN removed;
END $$;

-- The waiter that is next among those of the head's priority that have a share. An account with a first
-- waiter that is no longer there is put in order; if they are many, it is the turn of the head, and
-- later calls go on with them.
CREATE OR REPLACE FUNCTION aiolock._next(n bytea, head aiolock.waiters) RETURNS aiolock.waiters
LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    a aiolock.accounts;
    w aiolock.waiters;
BEGIN
    FOR attempt IN 1..GRANTS LOOP
        SELECT * INTO a FROM aiolock.accounts
            WHERE name = n AND priority = head.priority AND ticket IS NOT NULL
            ORDER BY name, priority, rank, start, ticket, client, seq LIMIT 1;
        EXIT WHEN NOT FOUND; -- its account was lost
        SELECT * INTO w FROM aiolock.waiters
            WHERE name = n AND ticket = a.ticket AND client = a.client AND seq = a.seq
            AND share = a.share;
        IF FOUND THEN
            RETURN w;
        END IF;
        PERFORM aiolock._account(n, a.priority, a.share, NULL, 0);
    END LOOP;
    RETURN head;
END $$;

-- Until when the numbers of a name are kept for a holder, in ms.
CREATE OR REPLACE FUNCTION aiolock._kept_for(w aiolock.waiters, lease bigint, us bigint)
RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN w.shares THEN
        us / 1000 + lease + A_MINUTE + greatest(w.after_loss, w.after_grant, w.period) ELSE 0 END
$$;

CREATE OR REPLACE FUNCTION aiolock._hold(
    n bytea, w aiolock.waiters, f bigint, lease bigint, us bigint, is_claim boolean
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO aiolock.grants VALUES (n, f, w.client, w.seq, us / 1000 + lease, w.shares, is_claim,
        w.claim, w.shares, w.rule, w.number, w.declared, w.fixed, w.once, w.downgrades,
        w.after_loss, w.after_grant, w.period, w.priority, w.share, w.weight);
END $$;

CREATE OR REPLACE FUNCTION aiolock._grant(
    n bytea, w aiolock.waiters, lease bigint, us bigint, is_claim boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    f bigint;
    until bigint := aiolock._kept_for(w, lease, us);
    done text;
BEGIN
    IF w.rule = '|' THEN
        RETURN aiolock._take(n, w, us);
    END IF;
    -- Mostly there is a row, and this is cheaper than ON CONFLICT: that locks the row on its own.
    UPDATE aiolock.names SET fence = greatest(fence + 1, us), keep_until = greatest(keep_until, until)
        WHERE name = n RETURNING fence INTO f;
    IF NOT FOUND THEN
        f := us;
        INSERT INTO aiolock.names (name, fence, keep_until) VALUES (n, f, until);
    END IF;
    done := aiolock._hold(n, w, f, lease, us, is_claim);
    RETURN f;
END $$;

-- Remove the waiters of dead clients from the queue, which has so many, or from those of a share: of
-- `most` that stand side by side, where the number says, if there are more; NULL: of all. Returns how
-- many these were.
CREATE OR REPLACE FUNCTION aiolock._remove_dead(
    n bytea, me text, number bigint, waiting bigint, most bigint,
    of_share aiolock.waiters DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first bigint := 0;
    removed bigint;
    changed text[];
    dead text[];
BEGIN
    IF waiting > most THEN
        -- PostgreSQL's remainder of a number below 0 is below 0, or 0.
        first := number % (waiting + most - 1);
        first := first + CASE WHEN first < 0 THEN waiting ELSE 1 - most END;
        most := least(most, first + most);
        first := greatest(first, 0);
    END IF;
    IF of_share.name IS NOT NULL THEN
        SELECT aiolock._dead(array_agg(DISTINCT client), me) INTO dead FROM (
            SELECT client FROM aiolock.waiters
                WHERE name = n AND priority = of_share.priority AND share = of_share.share
                AND share <> ''
                ORDER BY name, priority, share, ticket, client, seq LIMIT most OFFSET first) looked;
        DELETE FROM aiolock.waiters WHERE ctid = ANY (ARRAY(
            SELECT row_ FROM (
                SELECT client, ctid AS row_ FROM aiolock.waiters
                    WHERE name = n AND priority = of_share.priority AND share = of_share.share
                    AND share <> ''
                    ORDER BY name, priority, share, ticket, client, seq LIMIT most OFFSET first
            ) looked WHERE (client IN (SELECT unnest(dead))) IS TRUE -- so it is no join
            LIMIT PART));
        GET DIAGNOSTICS removed = ROW_COUNT;
        PERFORM aiolock._account(n, of_share.priority, of_share.share, NULL, 0);
        RETURN removed;
    END IF;
    WITH looked AS MATERIALIZED (
        SELECT client, ticket, seq FROM aiolock.waiters WHERE name = n
            ORDER BY name, ticket, client, seq LIMIT most OFFSET first
    ), dead AS MATERIALIZED (
        SELECT unnest(aiolock._dead(ARRAY(SELECT DISTINCT client FROM looked), me)) AS client
    ), removed AS MATERIALIZED ( -- not all of many: others wait for this
        SELECT looked.client, looked.seq FROM looked, dead WHERE looked.client = dead.client
            LIMIT CASE WHEN most IS NOT NULL THEN PART END
    ), left_ AS (
        DELETE FROM aiolock.waiters w USING removed
            WHERE w.name = n AND w.client = removed.client AND w.seq = removed.seq
            RETURNING w.priority, w.share
    ) SELECT count(*), array_agg(DISTINCT concat_ws(' ', priority, encode(share, 'hex')))
            FILTER (WHERE share <> '')
        INTO removed, changed FROM left_;
    IF changed IS NOT NULL THEN
        PERFORM aiolock._accounts(n, changed);
    END IF;
    RETURN removed;
END $$;

-- How many permits are taken. It looks at all holders.
CREATE OR REPLACE FUNCTION aiolock._taken(n bytea) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce(sum(number) FILTER (WHERE rule = '*'), 0)::bigint FROM aiolock.grants
        WHERE name = n
$$;

-- NULL if such a waiter may not enter beside the holders; otherwise how many more of a full group
-- enter: `passing` is how many before this one. Of the queue only the waiters behind its ticket count.
-- `taken`: see `_taken`; NULL if that is not known yet.
CREATE OR REPLACE FUNCTION aiolock._room(
    n bytea, w aiolock.waiters, us bigint, me text, passing bigint, taken bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    share boolean; -- whether the holders do, NULL if there are none: one that does not is alone
    behind bigint;
    fits boolean := true;
BEGIN
    SELECT shared INTO share FROM aiolock.grants WHERE name = n ORDER BY name, fence LIMIT 1;
    IF NOT share OR share AND NOT w.shares THEN
        RETURN NULL;
    END IF;
    CASE w.rule
        WHEN '&' THEN
            IF passing > 0 THEN
                RETURN passing - 1;
            END IF;
            FOR attempt IN 1..2 LOOP
                SELECT count(*) INTO behind FROM aiolock.waiters
                    WHERE name = n AND (ticket, client, seq) > (w.ticket, w.client, w.seq);
                fits := behind >= w.number - 1;
                EXIT WHEN NOT fits OR attempt = 2;
                PERFORM aiolock._remove_dead(n, me, 0, 0, NULL);
            END LOOP;
            IF fits THEN
                passing := w.number - 1;
            END IF;
        WHEN '^' THEN
            fits := coalesce((SELECT count FROM aiolock.names WHERE name = n), 0) >= w.number;
        WHEN '*' THEN
            fits := coalesce(taken, aiolock._taken(n)) + w.number
                <= aiolock._permits(n, w.declared, us);
        WHEN '|' THEN
            fits := aiolock._due(n, w, 0, us) <= us;
        WHEN '=' THEN -- all that have a number have the same, so one of them tells
            fits := coalesce((SELECT number = w.number FROM aiolock.grants
                WHERE name = n AND rule = '=' LIMIT 1), true);
        ELSE
            NULL;
    END CASE;
    RETURN CASE WHEN fits THEN passing END;
END $$;

-- Grant the lock to the others of a group, which enters as a whole: to so many waiters behind this one,
-- all of which are there, see `_room`. How many these were, the fence of the asking one, and until when
-- numbers are kept. In one statement: one after the other, thousands would take seconds.
CREATE OR REPLACE FUNCTION aiolock._grant_group(
    n bytea, w aiolock.waiters, others bigint, f bigint, us bigint, me text, asking bigint, ttl bigint,
    OUT entered bigint, OUT mine bigint, OUT until bigint
) LANGUAGE plpgsql AS $$
DECLARE
    cs text[];
    whats text[];
    rows_ tid[];
BEGIN
    WITH line AS MATERIALIZED (
        SELECT x.each, x.row_, f + row_number() OVER in_order AS fence,
            (x.each).client = me AND (x.each).seq = asking AS asks,
            bool_and((x.each).rule = '&') OVER in_order AS enters
            FROM (SELECT each, ctid AS row_ FROM aiolock.waiters each
                WHERE name = n AND (ticket, client, seq) > (w.ticket, w.client, w.seq)
                ORDER BY name, ticket, client, seq LIMIT others) x
            WINDOW in_order AS (ORDER BY (x.each).ticket, (x.each).client, (x.each).seq)
    ), leased AS MATERIALIZED (
        SELECT (each).*, each, row_, fence, asks,
            CASE WHEN asks THEN ttl ELSE (each).claim END AS lease
            FROM line WHERE enters
    ), granted AS (
        INSERT INTO aiolock.grants SELECT n, fence, client, seq, us / 1000 + lease, shares, NOT asks,
            claim, shares, rule, number, declared, fixed, once, downgrades, after_loss, after_grant,
            period, priority FROM leased
    ) SELECT count(*), max(fence) FILTER (WHERE asks),
            coalesce(max(aiolock._kept_for(each, lease, us)), 0),
            array_agg(client ORDER BY fence) FILTER (WHERE NOT asks),
            array_agg(concat_ws(' ', 'granted', seq, aiolock._form(each), fence, claim, us)
                ORDER BY fence) FILTER (WHERE NOT asks),
            array_agg(row_)
        INTO entered, mine, until, cs, whats, rows_ FROM leased;
    DELETE FROM aiolock.waiters WHERE ctid = ANY (rows_);
    PERFORM aiolock._push_all(n, cs, me, whats);
END $$;

-- Grant the lock from the head of the queue while waiters fit; returns the fence of the asking one.
-- With `counted`, waiters for a count that is still too low are passed over; so were those up to the
-- ticket `behind`. After many grants, the client of the next waiter gets a push to ask, and so goes on
-- with them: others wait for this transaction. Not within a group, which enters as a whole; nor for a
-- count, where each waiter enters when it asks, and no other: that is left to `go_on`. So it is after
-- many dead waiters, and before the first of those that `_reap` has left, behind `front` others.
CREATE OR REPLACE FUNCTION aiolock._advance(
    n bytea, us bigint, me text, asking bigint, ttl bigint, counted boolean, passing bigint,
    behind bigint DEFAULT NULL, front bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    w aiolock.waiters;
    head aiolock.waiters; -- the first, if the next is another, by their shares
    first aiolock.waiters;
    each aiolock.waiters;
    part bigint := aiolock._part();
    most bigint := least(part, front);
    looked bigint := 0;
    room bigint;
    taken bigint;
    permits_ bigint;
    alike bigint; -- the number that all holders with the rule '=' have, if one of them came now
    count_ bigint;
    there text; -- a client that is there
    of_rate boolean := false; -- whether these are waiters of a rate limit
    granted bigint := 0;
    charged bigint := 0; -- how many more these are worth, as shares cost more
    group_ record;
    lease bigint;
    f bigint;
    until bigint := 0;
    mine bigint := 0;
    done text;
BEGIN
    w.ticket := coalesce(behind + 1, -9223372036854775808); w.client := ''; w.seq := 0;
    LOOP
        -- Behind the last one: until the transaction ends, this would look at all that it has removed.
        SELECT * INTO w FROM aiolock.waiters
            WHERE name = n AND (ticket, client, seq) > (w.ticket, w.client, w.seq)
            ORDER BY name, ticket, client, seq LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF w.share <> '' THEN
            EXIT WHEN front IS NOT NULL; -- any of them may be the next
            head := w;
            w := aiolock._next(n, head);
            looked := looked + 3; -- it costs as much as four others
        END IF;
        IF looked >= most AND passing = 0 THEN
            IF front IS NULL THEN -- else this is in what is left already
                done := aiolock._leave(CASE WHEN counted
                    THEN concat_ws(' ', 'count', behind) ELSE 'advance' END);
            END IF;
            EXIT;
        END IF;
        looked := looked + 1;
        IF w.client = there THEN
            NULL;
        ELSIF aiolock._is_there(w.client, me) THEN
            there := w.client;
        ELSIF w.share <> '' THEN
            DELETE FROM aiolock.waiters
                WHERE name = n AND ticket = w.ticket AND client = w.client AND seq = w.seq;
            done := aiolock._account(n, w.priority, w.share, NULL, 0);
            IF w.rule = '|' THEN
                done := aiolock._moved_up(n);
                of_rate := true;
            END IF;
            w.ticket := head.ticket; w.client := head.client; w.seq := head.seq - 1;
            CONTINUE;
        ELSE
            first := w; -- of a row of them, which go in one statement
            FOR each IN SELECT * FROM aiolock.waiters
                WHERE name = n AND (ticket, client, seq) > (w.ticket, w.client, w.seq)
                ORDER BY name, ticket, client, seq
                LIMIT CASE WHEN most IS NOT NULL THEN greatest(most - looked, 0) END
            LOOP
                EXIT WHEN each.client <> w.client AND aiolock._is_there(each.client, me)
                    OR each.share <> '';
                looked := looked + 1;
                w := each;
            END LOOP;
            DELETE FROM aiolock.waiters WHERE name = n
                AND (ticket, client, seq) >= (first.ticket, first.client, first.seq)
                AND (ticket, client, seq) <= (w.ticket, w.client, w.seq);
            IF w.rule = '|' THEN
                done := aiolock._moved_up(n);
                of_rate := true;
            END IF;
            CONTINUE;
        END IF;
        IF w.rule = '*' AND taken IS NULL THEN
            taken := aiolock._taken(n);
        END IF;
        IF w.rule = '^' AND count_ IS NULL THEN
            count_ := coalesce((SELECT count FROM aiolock.names WHERE name = n), 0);
        END IF;
        -- Most of many need no look at the tables: the holders share if the last one that came does.
        IF w.rule = '^' AND count_ < w.number THEN
            room := NULL;
        ELSIF granted = 0 OR w.rule IN ('&', '|') OR w.rule = '*' AND permits_ IS NULL
                OR w.rule = '=' AND alike IS DISTINCT FROM w.number THEN
            room := aiolock._room(n, w, us, me, passing, taken);
        ELSE
            room := CASE WHEN w.shares AND (w.rule <> '*' OR taken + w.number <= permits_)
                THEN passing END;
        END IF;
        of_rate := of_rate OR w.rule = '|';
        IF room IS NULL THEN
            EXIT WHEN NOT (counted AND w.rule = '^' AND w.declared = 0);
            behind := w.ticket;
            CONTINUE;
        END IF;
        IF granted + charged >= GRANTS AND w.rule <> '&' AND NOT (w.client = me AND w.seq = asking) THEN
            IF w.rule <> '^' THEN
                done := aiolock._push(n, w.client, me, concat_ws(' ', 'done', w.seq));
                EXIT;
            ELSIF part IS NOT NULL THEN
                IF front IS NULL THEN
                    done := aiolock._leave(CASE WHEN counted
                        THEN concat_ws(' ', 'count', behind) ELSE 'advance' END);
                END IF;
                EXIT;
            END IF;
        END IF;
        granted := granted + 1;
        passing := room;
        alike := CASE WHEN w.rule = '=' THEN w.number ELSE alike END;
        DELETE FROM aiolock.waiters
            WHERE name = n AND ticket = w.ticket AND client = w.client AND seq = w.seq;
        IF w.rule = '|' THEN
            f := aiolock._take(n, w, us);
            IF w.client = me AND w.seq = asking THEN
                mine := f;
            ELSE
                done := aiolock._push(n, w.client, me,
                    concat_ws(' ', 'granted', w.seq, aiolock._form(w), f, w.claim, us));
            END IF;
            IF w.share <> '' THEN
                done := aiolock._charge(n, w);
                charged := 3 + charged; -- as below
                w.ticket := head.ticket; w.client := head.client; w.seq := head.seq - 1;
            END IF;
            CONTINUE;
        END IF;
        -- The last fence is written once, below: each write of a row leaves one behind.
        IF granted = 1 THEN
            SELECT fence INTO f FROM aiolock.names WHERE name = n;
        END IF;
        f := greatest(f + 1, us);
        lease := CASE WHEN w.client = me AND w.seq = asking THEN ttl ELSE w.claim END;
        until := greatest(until, aiolock._kept_for(w, lease, us));
        IF w.client = me AND w.seq = asking THEN
            mine := f;
            done := aiolock._hold(n, w, f, lease, us, false);
        ELSE
            done := aiolock._hold(n, w, f, lease, us, true);
            done := aiolock._push(n, w.client, me,
                concat_ws(' ', 'granted', w.seq, aiolock._form(w), f, w.claim, us));
        END IF;
        IF w.share <> '' THEN
            done := aiolock._charge(n, w);
            charged := charged + 3;
        END IF;
        EXIT WHEN NOT w.shares; -- no other fits beside it
        IF w.rule = '&' AND passing > 0 THEN
            SELECT * INTO group_ FROM aiolock._grant_group(n, w, passing, f, us, me, asking, ttl);
            granted := granted + group_.entered;
            looked := looked + group_.entered;
            passing := passing - group_.entered;
            f := f + group_.entered;
            mine := coalesce(group_.mine, mine);
            until := greatest(until, group_.until);
        END IF;
        IF w.rule = '*' THEN
            taken := taken + w.number;
            IF permits_ IS NULL THEN
                permits_ := (SELECT permits FROM aiolock.names WHERE name = n);
            END IF;
            EXIT WHEN taken >= coalesce(permits_, 0);
        END IF;
        IF w.share <> '' THEN -- the first may be the head again
            w.ticket := head.ticket; w.client := head.client; w.seq := head.seq - 1;
        END IF;
    END LOOP;
    IF of_rate THEN
        done := aiolock._tell_first(n, me, asking);
    ELSIF granted > 0 THEN
        INSERT INTO aiolock.names AS x (name, fence, keep_until) VALUES (n, f, until)
            ON CONFLICT (name) DO UPDATE SET fence = f, keep_until = greatest(x.keep_until, until);
    END IF;
    RETURN mine;
END $$;

-- Keep the lock closed for as long as the form of an ended grant demands; true if it does. `lost`:
-- when it was lost, in ms.
CREATE OR REPLACE FUNCTION aiolock._close(
    n bytea, g aiolock.grants, us bigint, lost bigint, me text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    granted bigint := least(g.fence, us) / 1000;
    opens bigint := 0;
    first aiolock.waiters;
BEGIN
    IF greatest(g.after_loss, g.after_grant, g.period) = 0 THEN
        RETURN false;
    END IF;
    IF lost IS NOT NULL AND g.after_loss > 0 THEN
        opens := lost + g.after_loss;
    END IF;
    IF g.after_grant > 0 THEN
        opens := greatest(opens, granted + g.after_grant);
    END IF;
    -- A lost claim may have been entered, or not; with a period it was not: that confirms first.
    IF g.period > 0 AND NOT (lost IS NOT NULL AND g.claimed) THEN
        opens := greatest(opens, (granted / g.period + 1) * g.period);
    END IF;
    IF opens <= us / 1000 THEN
        RETURN false;
    END IF;
    INSERT INTO aiolock.grants VALUES (n, g.fence, '-', 0, opens, g.shared, false, 0, g.shared,
        g.rule, g.number, g.declared, true, false, false, 0, 0, 0, 0);
    PERFORM aiolock._keep(n, opens + 60000);
    SELECT * INTO first FROM aiolock.waiters WHERE name = n
        ORDER BY name, ticket, client, seq LIMIT 1;
    IF FOUND THEN
        PERFORM aiolock._push(n, first.client, me, concat_ws(' ', 'done', first.seq));
    END IF;
    RETURN true;
END $$;

-- Grants were lost, the last of which has this fence. Their clients may have made local hand-offs
-- since, under higher fences.
CREATE OR REPLACE FUNCTION aiolock._pass(n bytea, f bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO aiolock.names AS x (name, fence) VALUES (n, f + MAX_AHEAD)
        ON CONFLICT (name) DO UPDATE SET fence = greatest(x.fence, f + MAX_AHEAD);
END $$;

-- Remove waiters of these clients, whose leases have ended, from the queue: of those behind that
-- ticket, as many as one call looks at. `last`: the ticket up to which it has looked, and `front`: how
-- many are in front of the others; NULL if there are no others. `gone`: whose waiters these were.
CREATE OR REPLACE FUNCTION aiolock._remove_stuck(
    n bytea, stuck text[], behind bigint, OUT gone text[], OUT last bigint, OUT front bigint
) LANGUAGE plpgsql AS $$
DECLARE
    part bigint := aiolock._part();
    changed text[];
BEGIN
    IF part IS NULL THEN
        WITH removed AS (
            DELETE FROM aiolock.waiters WHERE name = n AND client = ANY (stuck)
                RETURNING priority, share
        ) SELECT array_agg(DISTINCT concat_ws(' ', priority, encode(share, 'hex')))
                FILTER (WHERE share <> '')
            INTO changed FROM removed;
        IF changed IS NOT NULL THEN
            PERFORM aiolock._accounts(n, changed);
        END IF;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM aiolock.virtual_times WHERE name = n) THEN
        part := least(part, 64); -- each may have a share of its own
    END IF;
    WITH looked AS MATERIALIZED (
        SELECT ticket, client, seq FROM aiolock.waiters
            WHERE name = n AND ticket > coalesce(behind, -9223372036854775808)
            ORDER BY name, ticket, client, seq LIMIT part
    ), removed AS (
        DELETE FROM aiolock.waiters w USING looked
            WHERE looked.client = ANY (stuck)
            AND w.name = n AND w.client = looked.client AND w.seq = looked.seq
            RETURNING w.client, w.priority, w.share
    ) SELECT ARRAY(SELECT DISTINCT client FROM removed), (SELECT max(ticket) FROM looked),
            ARRAY(SELECT DISTINCT concat_ws(' ', priority, encode(share, 'hex')) FROM removed
                WHERE share <> '')
        INTO gone, last, changed;
    IF changed <> '{}' THEN
        PERFORM aiolock._accounts(n, changed);
    END IF;
    IF EXISTS (SELECT FROM aiolock.waiters WHERE name = n AND ticket > last) THEN
        SELECT count(*) INTO front FROM (
            SELECT FROM aiolock.waiters WHERE name = n AND ticket <= last LIMIT part) x;
    ELSE
        last := NULL;
    END IF;
END $$;

-- Remove waiters from the queue whose work is done, and notify their clients: of those behind that
-- ticket, as many as one call looks at.
CREATE OR REPLACE FUNCTION aiolock._dismiss(n bytea, me text, behind bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    w record;
    last bigint;
BEGIN
    SELECT max(ticket) INTO last FROM (
        SELECT ticket FROM aiolock.waiters
            WHERE name = n AND ticket > coalesce(behind, -9223372036854775808)
            ORDER BY name, ticket, client, seq LIMIT aiolock._part()) looked;
    FOR w IN
        WITH gone AS (
            DELETE FROM aiolock.waiters WHERE name = n AND once AND ticket <= last
                AND ticket > coalesce(behind, -9223372036854775808) RETURNING client, ticket, seq)
        SELECT DISTINCT ON (client) client, seq FROM gone ORDER BY client, ticket, seq
    LOOP
        PERFORM aiolock._push(n, w.client, me, concat_ws(' ', 'done', w.seq));
    END LOOP;
    IF EXISTS (SELECT FROM aiolock.waiters WHERE name = n AND ticket > last) THEN
        PERFORM aiolock._leave(concat_ws(' ', 'once', last));
    END IF;
END $$;

-- An open transaction has checked a grant that its holder releases, or finishes. The holder need not
-- wait for that, which may be waiting for the holder. So the grant ends now, by `ends`: 0, or the time
-- at which it was lost, below 0. It goes, and others enter, when the transaction has ended: then its
-- row can be locked. Until that time its client calls again, and so does the first in the queue, if
-- that client is gone: the first that is there, of those behind that ticket.
CREATE OR REPLACE FUNCTION aiolock._defer(n bytea, me text, behind bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := aiolock._part();
    looked bigint := 0;
    w aiolock.waiters;
BEGIN
    FOR w IN SELECT * FROM aiolock.waiters
        WHERE name = n AND ticket > coalesce(behind, -9223372036854775808)
        ORDER BY name, ticket, client, seq LIMIT most
    LOOP
        IF aiolock._is_there(w.client, me) THEN
            PERFORM aiolock._push(n, w.client, me, concat_ws(' ', 'done', w.seq));
            EXIT;
        END IF;
        looked := looked + 1;
    END LOOP;
    IF looked = most THEN
        PERFORM aiolock._leave(concat_ws(' ', 'deferred', w.ticket));
    END IF;
    RETURN 'checked' || aiolock._own();
END $$;

-- The work of this grant is done, which is remembered until then (in ms): notify the waiters for it.
CREATE OR REPLACE FUNCTION aiolock._done(n bytea, f bigint, until bigint, me text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM aiolock.grants WHERE name = n AND fence = f;
    INSERT INTO aiolock.grants VALUES (n, f, '-', 1, until, false, false, 0, false, '', 0, 0, true,
        true, false, 0, 0, 0, 0);
    PERFORM aiolock._dismiss(n, me, NULL);
END $$;

-- The transaction that had checked this grant has ended: what was deferred until then. Its row is
-- locked.
CREATE OR REPLACE FUNCTION aiolock._settle(n bytea, g aiolock.grants, us bigint, me text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF g.client = '-' THEN
        PERFORM aiolock._done(n, g.fence, g.number, me);
    ELSE
        DELETE FROM aiolock.grants WHERE name = n AND fence = g.fence;
        IF g.share <> '' THEN
            PERFORM aiolock._ended(n, g);
        END IF;
        g.claimed := false; -- it was entered
        PERFORM aiolock._close(n, g, us, nullif(-g.ends, 0), me);
    END IF;
END $$;

-- End leases that are over; true if there were any. Not all at once if they are many: others wait for
-- this transaction. That of the waiter which is asking is among them. If there are more, that waiter is
-- made to ask again, by the answer, and the first waiter by a push: each goes on with them. A lease that
-- a transaction has checked lasts as long as that: see `check_fence`. `front`: how many waiters are in
-- front of those of which some may belong to stuck clients, and which are left to another call; NULL
-- if none are.
CREATE OR REPLACE FUNCTION aiolock._reap(
    n bytea, us bigint, me text, asking bigint, OUT ended boolean, OUT front bigint
) LANGUAGE plpgsql AS $$
DECLARE
    g aiolock.grants;
    first aiolock.waiters;
    over bigint[] := '{}';
    top bigint;
    stuck text[] := '{}';
    unsure text[] := '{}'; -- a grant of each of these
    last bigint;
    done text;
BEGIN
    ended := false;
    -- Which ones these are is looked for apart: to sort the whole rows would take long.
    FOR g IN SELECT held.* FROM (
            SELECT fence AS due FROM aiolock.grants WHERE name = n AND ends <= us / 1000
                ORDER BY client = me AND seq = asking DESC, ends, fence LIMIT GRANTS
        ) ended JOIN aiolock.grants held ON name = n AND fence = due
        ORDER BY client = me AND seq = asking DESC, ends, fence FOR UPDATE OF held SKIP LOCKED
    LOOP
        ended := true;
        IF g.ends <= 0 THEN
            done := aiolock._settle(n, g, us, me);
            CONTINUE;
        END IF;
        over := over || g.fence;
        IF g.share <> '' THEN
            done := aiolock._ended(n, g);
        END IF;
        IF aiolock._is_client(g.client) THEN
            done := aiolock._push(n, g.client, me, concat_ws(' ', 'lost', g.seq, g.fence, 'expired'));
        END IF;
        IF g.after_loss + g.after_grant + g.period > 0 THEN
            DELETE FROM aiolock.grants WHERE name = n AND fence = ANY (over);
            over := '{}'; -- another may come under this fence
            done := aiolock._close(n, g, us, g.ends, me);
        END IF;
        top := greatest(top, g.fence);
        -- A claim must be confirmed, whether or not the lease is renewed afterwards.
        IF g.claimed OR NOT g.fixed THEN
            IF NOT g.client = ANY (stuck) THEN
                unsure := unsure || concat_ws(':', g.client, g.seq, g.fence);
            END IF;
            stuck := stuck || g.client;
        END IF;
    END LOOP;
    IF top IS NOT NULL THEN
        DELETE FROM aiolock.grants WHERE name = n AND fence = ANY (over);
        done := aiolock._pass(n, top);
    END IF;
    IF stuck <> '{}' THEN
        SELECT x.last, x.front INTO last, front FROM aiolock._remove_stuck(n, stuck, NULL) x;
        IF last IS NOT NULL THEN
            done := aiolock._leave(concat_ws(' ', 'stuck', last, array_to_string(unsure, ' ')));
        END IF;
    END IF;
    IF ended AND EXISTS (SELECT FROM aiolock.grants WHERE name = n AND ends <= us / 1000) THEN
        SELECT * INTO first FROM aiolock.waiters WHERE name = n
            ORDER BY name, ticket, client, seq LIMIT 1;
        IF FOUND AND NOT (first.client = me AND first.seq = asking) THEN
            PERFORM aiolock._push(n, first.client, me, concat_ws(' ', 'done', first.seq));
        END IF;
    END IF;
END $$;

-- Remove tombstones of a name that are over, not too many at once; returns how many.
CREATE OR REPLACE FUNCTION aiolock._remove_tombstones(n bytea, us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM aiolock.tombstones WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM aiolock.tombstones WHERE name = n AND ends <= us / 1000
            ORDER BY name, ends LIMIT PART));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

-- Remember that this waiter gave up, for as long as copies of its questions may still come.
CREATE OR REPLACE FUNCTION aiolock._give_up(n bytea, c text, s bigint, us bigint, bury bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    until bigint := (bury + 999) / 1000;
BEGIN
    PERFORM aiolock._remove_tombstones(n, us), aiolock._keep(n, until);
    INSERT INTO aiolock.tombstones VALUES (n, c, s, until)
        ON CONFLICT (name, client, seq) DO UPDATE SET ends = excluded.ends;
END $$;


-- The operations. `late`: until when, in microseconds, a copy may be carried out; 0: no limit.
-- `flushed`: as in `_lock`. An answer begins with a word; the lines after that are pushes for the
-- asking client.

CREATE OR REPLACE FUNCTION aiolock.acquire(
    n bytea, me text, s bigint, form bigint[], ttl bigint, asked bigint, wait boolean,
    max_waiters bigint, late bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._lock(n, false);
    ms bigint := us / 1000;
    w aiolock.waiters := aiolock._waiter(n, asked, me, s, form);
    kept bigint;
    gone jsonb;
    g aiolock.grants;
    behind aiolock.waiters;
    held boolean;
    alone boolean; -- whether a holder does not share
    ends_next bigint; -- when the first of the leases ends, in ms
    holds boolean; -- whether this one is a holder
    reaped boolean := false;
    front bigint; -- see `_reap`
    line boolean; -- whether there are waiters
    last bigint; -- the ticket of the last waiter
    queued boolean;
    displaced int;
    opened boolean;
    passing bigint;
    f bigint := 0;
    t bigint;
    waiting bigint;
BEGIN
    IF late > 0 AND us > late THEN
        RETURN 'late ' || us;
    END IF;
    SELECT keep_until, given_up INTO kept, gone FROM aiolock.names WHERE name = n;
    IF kept > 0 THEN
        IF kept <= ms THEN
            PERFORM aiolock._forget(n, us);
        ELSIF (gone ->> concat(me, ':', s))::bigint > ms OR EXISTS (SELECT FROM aiolock.tombstones
                WHERE name = n AND client = me AND seq = s AND ends > ms) THEN
            RETURN 'busy 0';
        END IF;
    END IF;
    IF w.declared > 0 AND aiolock._differs(n, w.declared, us) THEN
        RETURN 'differs ' || (SELECT permits FROM aiolock.names WHERE name = n);
    END IF;
    IF w.rule = '|' AND EXISTS (SELECT FROM aiolock.tombstones
            WHERE name = n AND client = me AND seq = -1 - s AND ends > ms) THEN -- it got its tokens
        RETURN concat_ws(' ', 'granted', greatest(aiolock._full_at(n, w.declared, us) - us, 1),
            w.claim, 0, 0);
    END IF;
    SELECT ends INTO ends_next FROM aiolock.grants WHERE name = n ORDER BY name, fence LIMIT 1;
    held := FOUND;
    IF held THEN
        IF ends_next <= ms THEN -- of many, the first ones end first: without a look at all of them
            SELECT x.ended, x.front INTO reaped, front FROM aiolock._reap(n, us, me, s) x;
        END IF;
        LOOP
            SELECT bool_or(NOT shared), min(ends), bool_or(client = me AND seq = s)
                INTO alone, ends_next, holds FROM aiolock.grants WHERE name = n;
            EXIT WHEN reaped OR ends_next > ms;
            SELECT x.ended, x.front INTO reaped, front FROM aiolock._reap(n, us, me, s) x;
            EXIT WHEN NOT reaped; -- a transaction has checked it
        END LOOP;
        IF holds THEN -- already
            SELECT * INTO g FROM aiolock.grants WHERE name = n AND client = me AND seq = s
                ORDER BY name, fence LIMIT 1;
            IF reaped THEN -- the ended holder may have held back others
                PERFORM aiolock._advance(n, us, me, 0, 0, false, 0, NULL, front);
            END IF;
            RETURN concat_ws(' ', 'granted', g.fence, greatest(g.ends - ms, 0), 0, g.claimed::int)
                || aiolock._own();
        END IF;
        IF w.once THEN
            SELECT * INTO g FROM aiolock.grants WHERE name = n AND client = '-' AND seq = 1;
            IF FOUND THEN
                -- If it is not dismissed yet: the answer is final.
                DELETE FROM aiolock.waiters WHERE name = n AND client = me AND seq = s;
                RETURN concat_ws(' ', 'done', g.ends - ms) || aiolock._own();
            END IF;
        END IF;
    END IF;

    -- Its end, for there may be the remains of many waiters before its head.
    SELECT ticket INTO last FROM aiolock.waiters WHERE name = n
        ORDER BY name DESC, ticket DESC, client DESC, seq DESC LIMIT 1;
    line := FOUND;
    queued := false;
    IF line THEN
        queued := EXISTS (SELECT FROM aiolock.waiters WHERE name = n AND client = me AND seq = s);
    END IF;
    displaced := (asked > 0 AND NOT queued)::int;

    -- It enters at once, past the queue, if it blocks no other.
    IF w.rule = '^' OR NOT line OR (w.rule = '&' AND NOT wait AND NOT queued) THEN
        w.ticket := -9223372036854775808; -- the whole queue counts as the others of its group
        passing := 0;
        IF held OR w.rule <> '' THEN
            passing := aiolock._room(n, w, us, me, 0, NULL);
        END IF;
        IF passing IS NOT NULL THEN
            IF queued THEN
                DELETE FROM aiolock.waiters WHERE name = n AND client = me AND seq = s;
            END IF;
            IF passing > 0 THEN
                PERFORM aiolock._advance(n, us, me, 0, 0, false, passing, NULL, front); -- those that came before
            END IF;
            f := aiolock._grant(n, w, ttl, us, false);
            RETURN concat_ws(' ', 'granted', f, ttl, displaced, 0) || aiolock._own();
        END IF;
    END IF;

    opened := NOT coalesce(alone, false);
    IF wait AND NOT queued THEN
        IF asked = 0 AND max_waiters > 0 THEN
            IF w.share = '' THEN
                SELECT count(*) INTO waiting FROM aiolock.waiters WHERE name = n;
            ELSE
                SELECT count(*) INTO waiting FROM aiolock.waiters
                    WHERE name = n AND priority = w.priority AND share = w.share AND share <> '';
            END IF;
            IF waiting >= max_waiters THEN
                t := aiolock._remove_dead(n, me, us, waiting, CHECKS_IF_FULL,
                    CASE WHEN w.share <> '' THEN w END);
                waiting := waiting - t;
                IF t > 0 AND w.rule = '|' THEN
                    PERFORM aiolock._moved_up(n);
                END IF;
                last := (SELECT ticket FROM aiolock.waiters WHERE name = n
                    ORDER BY name DESC, ticket DESC, client DESC, seq DESC LIMIT 1);
            END IF;
            IF waiting >= max_waiters THEN
                IF opened AND w.rule <> '^' THEN -- dead waiters are removed: those behind may fit
                    PERFORM aiolock._advance(n, us, me, 0, 0, false, 0, NULL, front);
                END IF;
                RETURN concat_ws(' ', 'full', waiting) || aiolock._own();
            END IF;
        END IF;
        w.ticket := asked;
        IF asked = 0 THEN -- behind the last of its priority, even if the clock was set back
            w.ticket := us + w.priority * PRIORITY;
            t := last;
            IF t >= w.ticket + 50000000000000 THEN
                SELECT ticket INTO t FROM aiolock.waiters
                    WHERE name = n AND ticket < w.ticket + 50000000000000
                    ORDER BY name DESC, ticket DESC LIMIT 1;
            END IF;
            w.ticket := greatest(w.ticket, t + 1);
        END IF;
        IF w.rule = '^' THEN -- perhaps nothing was granted or declared, and the sweep goes by names
            INSERT INTO aiolock.names (name) VALUES (n) ON CONFLICT DO NOTHING;
        END IF;
        INSERT INTO aiolock.waiters VALUES (w.*);
        IF w.share <> '' THEN
            PERFORM aiolock._account(n, w.priority, w.share, NULL, 0);
        END IF;
        IF last >= w.ticket THEN
            SELECT * INTO behind FROM aiolock.waiters
                WHERE name = n AND (ticket, client, seq) > (w.ticket, w.client, w.seq)
                ORDER BY name, ticket, client, seq LIMIT 1;
            IF behind.client <> me THEN
                PERFORM aiolock._push(n, behind.client, me, concat_ws(' ', 'void', behind.seq));
            END IF;
        END IF;
        IF asked = 0 AND w.ticket % LOOKERS = 0 THEN
            SELECT ticket INTO t FROM aiolock.waiters WHERE name = n
                ORDER BY name, ticket, client, seq LIMIT 1;
            IF w.ticket - t >= STANDS_STILL THEN
                SELECT count(*) INTO waiting FROM aiolock.waiters WHERE name = n;
                IF aiolock._remove_dead(n, me, w.ticket / LOOKERS, waiting, CHECKS) > 0
                        AND w.rule = '|' THEN
                    PERFORM aiolock._moved_up(n);
                END IF;
                SELECT max(ticket) INTO last FROM aiolock.waiters
                    WHERE name = n AND NOT (client = me AND seq = s);
            END IF;
        END IF;
    END IF;
    IF opened AND w.rule <> '^' THEN
        f := aiolock._advance(n, us, me, s, ttl, false, 0, NULL, front);
        IF f = 0 AND NOT wait AND NOT EXISTS (SELECT FROM aiolock.waiters WHERE name = n) THEN
            w.ticket := -9223372036854775808;
            IF aiolock._room(n, w, us, me, 0, NULL) IS NOT NULL THEN
                f := aiolock._grant(n, w, ttl, us, false); -- all waiters were dead
            END IF;
        END IF;
    END IF;
    IF f > 0 THEN
        RETURN concat_ws(' ', 'granted', f, ttl, displaced, 0) || aiolock._own();
    END IF;

    IF w.rule = '|' THEN -- when its tokens are there: see LOOKED_AHEAD
        SELECT coalesce((SELECT ticket FROM aiolock.waiters WHERE name = n AND client = me AND seq = s),
            9223372036854775807) INTO w.ticket;
        SELECT count(*) INTO waiting FROM aiolock.waiters
            WHERE name = n AND (ticket, client, seq) < (w.ticket, me, s);
        SELECT waiting + coalesce(sum(number - 1), 0)::bigint INTO t FROM (
            SELECT number FROM aiolock.waiters
                WHERE name = n AND (ticket, client, seq) < (w.ticket, me, s)
                ORDER BY name, ticket, client, seq LIMIT LOOKED_AHEAD) x;
        SELECT * INTO behind FROM aiolock.waiters WHERE name = n
            ORDER BY name, ticket, client, seq LIMIT 1;
        w.number := form[4];
        IF behind.share <> '' AND wait THEN
            behind := aiolock._next(n, behind);
            IF behind.client = me THEN -- its client asks for the one that is next
                w.number := behind.number;
                t := 0;
            END IF;
        END IF;
        t := CASE WHEN strpos(aiolock._own(), E'\nrest ') > 0 THEN 0
            ELSE greatest(aiolock._due(n, w, t, us) - us, 1) END;
        IF NOT wait THEN
            RETURN concat_ws(' ', 'busy', CASE WHEN t = 0 THEN -1 ELSE t END) || aiolock._own();
        END IF;
        RETURN concat_ws(' ', 'queued', w.ticket, waiting + 1, (t + 999) / 1000, us, displaced)
            || aiolock._own();
    END IF;

    -- The lock is taken.
    IF (opened OR NOT wait) AND NOT (reaped AND coalesce(ends_next <= ms, false)) THEN
        SELECT * INTO g FROM aiolock.grants WHERE name = n AND fence = (
            SELECT fence FROM aiolock.grants WHERE name = n ORDER BY ends, fence LIMIT 1);
        ends_next := g.ends;
    END IF;
    -- A lease that is over, but prolonged by a transaction, ends with that transaction, so soon; or
    -- there were more than one call ends.
    t := CASE WHEN ends_next IS NULL AND strpos(aiolock._own(), E'\nrest ') > 0 THEN 0
        WHEN ends_next IS NULL THEN KEEP_ALIVE WHEN ends_next > ms THEN ends_next - ms
        WHEN reaped THEN 0 ELSE 100 END;
    IF NOT wait THEN
        IF t = 0 THEN
            RETURN 'busy -1' || aiolock._own();
        END IF;
        IF g.name IS NULL OR g.client = '-' THEN
            RETURN concat_ws(' ', 'busy', t) || aiolock._own();
        END IF;
        RETURN concat_ws(' ', 'busy', t, aiolock._party(g, us)) || aiolock._own();
    END IF;
    IF queued OR opened OR last >= w.ticket THEN
        SELECT * INTO w FROM aiolock.waiters WHERE name = n AND client = me AND seq = s;
        SELECT count(*) INTO waiting FROM (
            SELECT FROM aiolock.waiters
            WHERE name = n AND (ticket, client, seq) < (w.ticket, w.client, w.seq) LIMIT 1
        ) before_it;
    ELSE -- it has come behind the last
        waiting := (last IS NOT NULL)::int;
    END IF;
    -- The answer does not name the waiter before it. Otherwise a client would make local hand-offs,
    -- which `check_fence` would not see at once, and could not prevent.
    RETURN concat_ws(' ', 'queued', w.ticket, waiting + 1, t, us, displaced) || aiolock._own();
END $$;

-- A holder, for people. Its share is last, as earlier versions read no further than the host.
CREATE OR REPLACE FUNCTION aiolock._party(g aiolock.grants, us bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    c aiolock.clients;
BEGIN
    SELECT * INTO c FROM aiolock.clients WHERE id = g.client;
    RETURN concat_ws(' ', aiolock._shown(g.client), g.seq, g.fence,
        CASE WHEN g.ends > 0 THEN g.ends * 1000 - us ELSE 0 END, g.shared::int,
        CASE WHEN g.rule IN ('*', '=') THEN g.number ELSE 0 END, coalesce(c.pid, 0),
        encode(convert_to(coalesce(c.host, ''), 'UTF8'), 'hex'),
        CASE WHEN g.share <> '' THEN concat_ws(' ', encode(g.share, 'hex'), g.weight) END);
END $$;

-- `entered`: NULL for a grant that was entered and is lost, as its lease has ended at its client.
CREATE OR REPLACE FUNCTION aiolock.release(
    n bytea, me text, s bigint, f bigint, entered boolean, bury bigint,
    flushed boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._lock(n, flushed);
    g aiolock.grants;
    p bigint;
    share_ bytea;
    lost bigint;
    line boolean; -- whether anybody waits
    rule_ text;
BEGIN
    IF bury > 0 THEN
        PERFORM aiolock._forget(n, us);
        PERFORM aiolock._give_up(n, me, s, us, bury);
    END IF;
    IF f = 0 THEN
        DELETE FROM aiolock.waiters WHERE name = n AND client = me AND seq = s
            RETURNING rule, priority, share INTO rule_, p, share_;
        IF FOUND THEN
            IF share_ <> '' THEN
                PERFORM aiolock._account(n, p, share_, NULL, 0);
            END IF;
            IF rule_ = '|' THEN
                PERFORM aiolock._moved_up(n);
            END IF;
            IF NOT EXISTS (SELECT FROM aiolock.grants WHERE name = n AND NOT shared) THEN
                PERFORM aiolock._forget(n, us);
                PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
            END IF;
            RETURN '2' || aiolock._own();
        END IF;
        SELECT fence INTO f FROM aiolock.grants WHERE name = n AND client = me AND seq = s
            ORDER BY name, fence LIMIT 1;
    END IF;
    SELECT EXISTS (SELECT FROM aiolock.waiters WHERE name = n) INTO line FROM aiolock.grants
        WHERE name = n AND fence = f AND client = me AND seq = s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN -- or an open transaction has checked it, beside which it can be changed
        SELECT * INTO g FROM aiolock.grants
            WHERE name = n AND fence = f AND client = me AND seq = s;
        IF NOT FOUND THEN
            RETURN '0';
        END IF;
        IF g.ends <= 0 THEN
            RETURN 'checked';
        END IF;
        UPDATE aiolock.grants SET ends = CASE WHEN entered IS NULL OR ends <= us / 1000
                THEN -least(ends, us / 1000) ELSE 0 END
            WHERE name = n AND fence = f;
        RETURN aiolock._defer(n, me);
    END IF;
    DELETE FROM aiolock.grants WHERE name = n AND fence = f AND client = me AND seq = s
        RETURNING * INTO g;
    IF g.ends <= 0 THEN
        PERFORM aiolock._settle(n, g, us, me), aiolock._forget(n, us),
            aiolock._advance(n, us, me, 0, 0, false, 0);
        RETURN '1' || aiolock._own();
    END IF;
    IF line AND g.share <> '' THEN
        PERFORM aiolock._ended(n, g);
    END IF;
    IF line OR g.after_loss + g.after_grant + g.period > 0 THEN
        g.claimed := false; -- it counts as confirmed: the release carries whether it was entered
        -- A lease that has ended was lost, although its holder could still release it.
        lost := CASE WHEN entered IS NULL OR g.ends <= us / 1000 THEN least(g.ends, us / 1000) END;
        entered := coalesce(entered, true);
        PERFORM aiolock._forget(n, us);
        IF NOT (entered AND aiolock._close(n, g, us, lost, me) AND NOT g.shared) THEN
            PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
        END IF;
    END IF;
    RETURN '1' || aiolock._own();
END $$;

-- Takes no advisory locks: each lease is one row. In the order of names, as everywhere.
CREATE OR REPLACE FUNCTION aiolock.renew(
    names bytea[], me text, seqs bigint[], fences bigint[], ttls bigint[], late bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint;
    held text[] := array_fill('0'::text, ARRAY[cardinality(names)]);
    line record;
BEGIN
    IF late > 0 AND aiolock._clock() > late THEN
        RETURN 'late ' || aiolock._clock();
    END IF;
    FOR line IN SELECT u.* FROM unnest(names, seqs, fences, ttls)
        WITH ORDINALITY u (name, seq, fence, ttl, place) ORDER BY u.name, u.fence
    LOOP
        us := aiolock._clock();
        IF line.ttl > 0 THEN
            UPDATE aiolock.grants SET ends = us / 1000 + line.ttl, claimed = false
                WHERE name = line.name AND fence = line.fence AND client = me AND seq = line.seq
                AND ends > us / 1000;
        ELSE
            PERFORM FROM aiolock.grants
                WHERE name = line.name AND fence = line.fence AND client = me AND seq = line.seq
                AND ends > us / 1000;
        END IF;
        IF FOUND THEN
            held[line.place] := '1';
            IF line.ttl > 0 THEN
                UPDATE aiolock.names m SET keep_until = greatest(m.keep_until,
                        us / 1000 + line.ttl + 60000
                        + greatest(g.after_loss, g.after_grant, g.period))
                    FROM aiolock.grants g
                    WHERE m.name = line.name AND m.keep_until > us / 1000
                    AND g.name = line.name AND g.fence = line.fence;
            END IF;
        END IF;
    END LOOP;
    RETURN array_to_string(held, '');
END $$;

CREATE OR REPLACE FUNCTION aiolock.finish(
    n bytea, me text, s bigint, f bigint, keep bigint, bury bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._lock(n, false);
    -- A late copy gets the answer "done" for as long as that is remembered, so until `bury` at least.
    until bigint := greatest(us / 1000 + keep, (bury + 999) / 1000);
    g aiolock.grants;
BEGIN
    SELECT * INTO g FROM aiolock.grants WHERE name = n AND fence = f
        AND (client = me AND seq = s OR client = '-' AND seq = 2) FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        PERFORM aiolock._done(n, f, CASE WHEN g.client = '-' THEN g.number ELSE until END, me);
        RETURN '1' || aiolock._own();
    END IF;
    -- It is gone, or done; or, as in release, an open transaction has checked it.
    UPDATE aiolock.grants SET client = '-', seq = 2, ends = 0, shared = false, claimed = false,
            rule = '', number = until, fixed = true, after_loss = 0, after_grant = 0, period = 0
        WHERE name = n AND fence = f AND client = me AND seq = s;
    IF FOUND THEN
        RETURN aiolock._defer(n, me);
    END IF;
    SELECT * INTO g FROM aiolock.grants WHERE name = n AND fence = f AND client = '-';
    RETURN CASE g.seq WHEN 1 THEN '1' WHEN 2 THEN 'checked' ELSE '0' END;
END $$;

-- Ask holders to release the lock, of those with higher fences; not too many at once. How many
-- of them are there, and, if there are others, the last of these fences.
CREATE OR REPLACE FUNCTION aiolock._request(n bytea, us bigint, me text, f bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    g aiolock.grants;
    most bigint := aiolock._part();
    asked text[] := '{}';
    dead text[];
    last bigint;
    behind bigint;
    done text;
BEGIN
    FOR g IN SELECT * FROM aiolock.grants
        WHERE name = n AND fence > f AND ends > us / 1000 AND aiolock._is_client(client)
        ORDER BY name, fence LIMIT most + 1
    LOOP
        IF cardinality(asked) = most THEN
            behind := last;
            EXIT;
        END IF;
        done := aiolock._push(n, g.client, me, concat_ws(' ', 'requested', g.seq, g.fence));
        asked := asked || g.client;
        last := g.fence;
    END LOOP;
    dead := aiolock._dead(ARRAY(SELECT DISTINCT unnest(asked)), me);
    RETURN concat_ws(' ', (SELECT count(*) FROM unnest(asked) c WHERE NOT c = ANY (dead)),
        behind);
END $$;

CREATE OR REPLACE FUNCTION aiolock.request(n bytea, me text, late bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
BEGIN
    IF late > 0 AND us > late THEN
        RETURN 'late ' || us;
    END IF;
    RETURN aiolock._request(n, us, me, 0) || aiolock._own();
END $$;

CREATE OR REPLACE FUNCTION aiolock.break_(n bytea, me text, fences bigint[]) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
    g aiolock.grants;
    broken bigint := 0;
    top bigint;
    done text;
BEGIN
    FOR g IN SELECT * FROM aiolock.grants WHERE name = n AND fence = ANY (fences) AND client <> '-'
        ORDER BY name, fence FOR UPDATE NOWAIT
    LOOP
        broken := broken + 1;
        top := g.fence;
        DELETE FROM aiolock.grants WHERE name = n AND fence = g.fence;
        IF g.share <> '' THEN
            done := aiolock._ended(n, g);
        END IF;
        IF aiolock._is_client(g.client) THEN
            done := aiolock._push(n, g.client, me, concat_ws(' ', 'lost', g.seq, g.fence, 'broken'));
        END IF;
        IF g.after_loss + g.after_grant + g.period > 0 THEN
            done := aiolock._close(n, g, us, us / 1000, me);
        END IF;
    END LOOP;
    IF broken > 0 THEN
        PERFORM aiolock._pass(n, top), aiolock._advance(n, us, me, 0, 0, false, 0);
    END IF;
    RETURN broken || aiolock._own();
END $$;

-- Notify clients again that may have missed a push: a session has ended before its `flush`. It
-- had pushes for claims that are not confirmed, here those with higher fences, not too many at once;
-- and for the first in the queue of a name that was closed. If a claim has ended meanwhile, its waiter
-- comes back to its old place in the queue.
CREATE OR REPLACE FUNCTION aiolock._notify(n bytea, us bigint, me text, f bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := aiolock._part();
    pushed bigint := 0;
    last bigint;
    g aiolock.grants;
    first aiolock.waiters;
    done text;
BEGIN
    FOR g IN SELECT * FROM aiolock.grants
        WHERE name = n AND fence > f AND claimed AND ends > us / 1000
        ORDER BY name, fence LIMIT most + 1
    LOOP
        IF pushed = most THEN
            done := aiolock._leave(concat_ws(' ', 'notify', last));
            RETURN;
        END IF;
        done := aiolock._push(n, g.client, me, concat_ws(' ', 'granted', g.seq,
            aiolock._form(ROW(n, 0, g.client, g.seq, g.claim, g.shares, g.rule, g.number,
                g.declared, g.fixed, g.once, g.downgrades, g.after_loss, g.after_grant, g.period,
                g.priority, g.share, g.weight)::aiolock.waiters), g.fence, g.ends - us / 1000, us));
        pushed := pushed + 1;
        last := g.fence;
    END LOOP;
    IF (aiolock._reap(n, us, me, 0)).ended THEN
        PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
    END IF;
    SELECT * INTO first FROM aiolock.waiters WHERE name = n
        ORDER BY name, ticket, client, seq LIMIT 1;
    IF FOUND THEN
        PERFORM aiolock._push(n, first.client, me, concat_ws(' ', 'done', first.seq));
    END IF;
END $$;

-- Go on with what an earlier call has left, see `_leave`, or with pushes that a session has left;
-- `late` matters for `request` only.
CREATE OR REPLACE FUNCTION aiolock.go_on(n bytea, me text, rest text, late bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
    words text[] := string_to_array(rest, ' ');
    behind bigint := words[2];
    grants text[] := words[3:];
    gone text[];
    last bigint;
    front bigint;
    g text;
BEGIN
    CASE words[1]
        WHEN 'request' THEN
            IF late > 0 AND us > late THEN
                RETURN 'late ' || us;
            END IF;
            RETURN aiolock._request(n, us, me, behind) || aiolock._own();
        WHEN 'notify' THEN
            PERFORM aiolock._notify(n, us, me, coalesce(behind, 0));
        WHEN 'once' THEN
            PERFORM aiolock._dismiss(n, me, behind);
        WHEN 'deferred' THEN
            PERFORM aiolock._defer(n, me, behind);
        WHEN 'count' THEN
            PERFORM aiolock._advance(n, us, me, 0, 0, true, 0, behind);
        WHEN 'stuck' THEN
            SELECT x.gone, x.last, x.front INTO gone, last, front FROM aiolock._remove_stuck(n,
                ARRAY(SELECT split_part(each, ':', 1) FROM unnest(grants) each), behind) x;
            IF last IS NOT NULL THEN
                PERFORM aiolock._leave(
                    concat_ws(' ', 'stuck', last, array_to_string(grants, ' ')));
            END IF;
            -- Some of them may have come back before they were removed: they ask once more.
            FOREACH g IN ARRAY grants LOOP
                IF split_part(g, ':', 1) = ANY (gone) THEN
                    PERFORM aiolock._push(n, split_part(g, ':', 1), me,
                        concat_ws(' ', 'lost', split_part(g, ':', 2), split_part(g, ':', 3),
                            'expired'));
                END IF;
            END LOOP;
            PERFORM aiolock._advance(n, us, me, 0, 0, false, 0, NULL, front);
        ELSE
            PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
    END CASE;
    RETURN '0' || aiolock._own();
END $$;

CREATE OR REPLACE FUNCTION aiolock.downgrade(
    n bytea, me text, s bigint, f bigint, flushed boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, flushed);
    g aiolock.grants;
BEGIN
    SELECT * INTO g FROM aiolock.grants
        WHERE name = n AND fence = f AND client = me AND seq = s;
    IF NOT FOUND OR (NOT g.shared AND g.ends <= us / 1000) THEN
        RETURN '0';
    END IF;
    IF NOT g.shared THEN
        PERFORM FROM aiolock.grants WHERE name = n AND fence = f FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN -- an open transaction has checked it: others enter when that has ended
            RETURN 'checked';
        END IF;
        UPDATE aiolock.grants SET shared = true WHERE name = n AND fence = f;
        PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
    END IF;
    RETURN '1' || aiolock._own();
END $$;

-- Let this grant belong to whoever has the key, whose client it gets. It is on record under the same
-- fence, so a transaction that has checked it goes on. The queue is not looked at.
CREATE OR REPLACE FUNCTION aiolock.detach(
    n bytea, me text, s bigint, f bigint, key text, ttl bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
    until bigint := us / 1000 + ttl;
    detached text := concat('=', key);
    g aiolock.grants;
BEGIN
    SELECT * INTO g FROM aiolock.grants WHERE name = n AND fence = f;
    IF g.client = detached AND g.ends > 0 THEN
        RETURN '1';
    END IF;
    IF EXISTS (SELECT FROM aiolock.tombstones -- it was discarded before this copy came
            WHERE name = n AND client = detached AND seq = 0 AND ends > us / 1000) THEN
        RETURN '0';
    END IF;
    -- A renewal takes no advisory lock: it may be prolonging this grant.
    UPDATE aiolock.grants
        SET client = detached, seq = 0, ends = until, claimed = false, fixed = true
        WHERE name = n AND fence = f AND client = me AND seq = s AND ends > us / 1000;
    IF NOT FOUND THEN
        RETURN '0';
    END IF;
    PERFORM aiolock._keep(n, until + A_MINUTE + greatest(g.after_loss, g.after_grant, g.period));
    RETURN '1';
END $$;

-- Let the waiter that has the key hold what was detached with it, under a new fence. The queue is not
-- looked at. If an open transaction has checked the grant, that must end first: the call fails, and is
-- repeated. `is_fixed`: of the waiter's form; the rest of that is the grant's.
CREATE OR REPLACE FUNCTION aiolock.adopt(
    n bytea, me text, s bigint, is_fixed boolean, f bigint, key text, ttl bigint, late bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
    ms bigint := us / 1000;
    g aiolock.grants;
    until bigint;
    new bigint;
BEGIN
    IF late > 0 AND us > late THEN
        RETURN 'late ' || us;
    END IF;
    IF EXISTS (SELECT FROM aiolock.tombstones
            WHERE name = n AND client = me AND seq = s AND ends > ms) THEN
        RETURN '0';
    END IF;
    SELECT * INTO g FROM aiolock.grants
        WHERE name = n AND fence = f AND client = concat('=', key) AND ends > ms FOR UPDATE NOWAIT;
    IF NOT FOUND THEN
        -- An earlier copy may have adopted it; other grants since are few, mostly.
        SELECT * INTO g FROM aiolock.grants
            WHERE name = n AND fence > f AND client = me AND seq = s
            ORDER BY name, fence LIMIT 1;
        IF NOT FOUND OR g.ends <= ms THEN
            RETURN '0';
        END IF;
        RETURN concat_ws(' ', 'granted', g.fence, g.ends - ms, 0, 0);
    END IF;
    until := ms + ttl + A_MINUTE + greatest(g.after_loss, g.after_grant, g.period);
    INSERT INTO aiolock.names AS x (name, fence, keep_until) VALUES (n, greatest(f + 1, us), until)
        ON CONFLICT (name) DO UPDATE SET fence = greatest(x.fence + 1, f + 1, us),
            keep_until = greatest(x.keep_until, until)
        RETURNING fence INTO new;
    UPDATE aiolock.grants
        SET fence = new, client = me, seq = s, ends = ms + ttl, fixed = is_fixed
        WHERE name = n AND fence = f;
    RETURN concat_ws(' ', 'granted', new, ttl, 0, 0);
END $$;

CREATE OR REPLACE FUNCTION aiolock.resize(
    n bytea, me text, d bigint, permits_now bigint, keep bigint, token text, late bigint,
    flushed boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, flushed);
    ms bigint := us / 1000;
    m aiolock.names;
    before bigint;
    other bigint;
    until bigint;
BEGIN
    IF late > 0 AND us > late THEN
        RETURN 'late ' || us;
    END IF;
    SELECT * INTO m FROM aiolock.names WHERE name = n;
    IF (m.resized -> token ->> 1)::bigint > ms THEN
        RETURN m.resized -> token ->> 0;
    END IF;
    before := aiolock._permits(n, d, us);
    other := CASE WHEN d = permits_now THEN before ELSE d END;
    IF permits_now >= 2251799813685248 THEN -- the least that stands for a rate
        PERFORM aiolock._resize_bucket(n, d, permits_now, us);
    END IF;
    -- Recognized, after the last copy may have come, for as long as the client may send another.
    until := (CASE WHEN late > 0 THEN late ELSE us END + 999) / 1000 + RESIZED;
    UPDATE aiolock.names SET permits = permits_now,
            declared = CASE WHEN other <> permits_now THEN other ELSE declared END,
            keep_until = greatest(keep_until, ms + keep, until),
            resized = coalesce((SELECT jsonb_object_agg(key, value) FROM jsonb_each(m.resized)
                WHERE (value ->> 1)::bigint > ms), '{}')
                || jsonb_build_object(token, jsonb_build_array(before, until))
        WHERE name = n;
    PERFORM aiolock._advance(n, us, me, 0, 0, false, 0);
    RETURN before || aiolock._own();
END $$;

CREATE OR REPLACE FUNCTION aiolock.post(
    n bytea, me text, counted bigint, token text, d bigint, put_up bytea, keep bigint, late bigint,
    flushed boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, flushed);
    m aiolock.names;
    before bigint;
BEGIN
    IF late > 0 AND us > late THEN
        RETURN 'late ' || us;
    END IF;
    IF d > 0 AND aiolock._differs(n, d, us) THEN
        RETURN (SELECT -permits FROM aiolock.names WHERE name = n);
    END IF;
    PERFORM aiolock._keep(n, us / 1000 + keep);
    SELECT * INTO m FROM aiolock.names WHERE name = n;
    before := m.count;
    IF put_up <> '' AND counted >= before THEN
        m.value := put_up;
    END IF;
    m.count := greatest(m.count, counted);
    IF token <> '' AND NOT token = ANY (m.tokens) THEN
        m.tokens := m.tokens || token;
        m.count := m.count + 1;
    END IF;
    UPDATE aiolock.names SET count = m.count, value = m.value, tokens = m.tokens WHERE name = n;
    PERFORM aiolock._advance(n, us, me, 0, 0, m.count > before, 0);
    RETURN m.count || aiolock._own();
END $$;

-- A fence that is higher than any before of this name, without a grant.
CREATE OR REPLACE FUNCTION aiolock.make_fence(n bytea) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
    f bigint;
BEGIN
    INSERT INTO aiolock.names AS x (name, fence) VALUES (n, us)
        ON CONFLICT (name) DO UPDATE SET fence = greatest(x.fence + 1, us) RETURNING fence INTO f;
    RETURN f;
END $$;

CREATE OR REPLACE FUNCTION aiolock.read(n bytea) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    m aiolock.names;
BEGIN
    SELECT * INTO m FROM aiolock.names
        WHERE name = n AND NOT keep_until BETWEEN 1 AND aiolock._clock() / 1000;
    RETURN concat_ws(' ', coalesce(m.count, 0), encode(coalesce(m.value, ''), 'hex'));
END $$;

-- Whether an open transaction has checked this grant.
CREATE OR REPLACE FUNCTION aiolock._is_checked(n bytea, f bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM aiolock.grants WHERE name = n AND fence = f FOR UPDATE SKIP LOCKED;
    RETURN NOT FOUND;
END $$;

-- The status of these names, in the given order: of each `ws` waiters at most, those behind this
-- place in the queue, and `hs` holders, those behind this fence. If no waiters are wanted, also how
-- many holders there are. `more`: whether there are names behind these.
CREATE OR REPLACE FUNCTION aiolock._statuses(
    ns bytea[], ws bigint, t bigint, c text, s bigint, hs bigint, f bigint, more boolean
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    us bigint := aiolock._clock();
BEGIN
    RETURN (WITH held AS (
        SELECT g.* FROM unnest(ns) n, LATERAL (SELECT * FROM aiolock.grants
            WHERE name = n AND fence > f AND client <> '-' AND (ends > us / 1000
                OR ends <= 0 AND aiolock._is_checked(n, fence))
            ORDER BY fence LIMIT hs) g
    ), waiting AS (
        SELECT w.* FROM unnest(ns) n, LATERAL (SELECT * FROM aiolock.waiters
            WHERE name = n AND (ticket, client, seq) > (t, c COLLATE "C", s)
            ORDER BY ticket, client, seq LIMIT ws) w
    ), grouped_held AS (
        SELECT name, json_agg(json_build_array(aiolock._shown(client), seq, shared,
            CASE WHEN rule IN ('*', '=') THEN number ELSE 0 END, fence,
            greatest(ends, us / 1000 + 1)) ORDER BY fence) AS parties,
            CASE WHEN bool_or(share <> '') THEN json_agg(
                json_build_array(encode(share, 'hex'), weight) ORDER BY fence) END AS shares
            FROM held GROUP BY name
    ), grouped_waiting AS (
        SELECT name, json_agg(json_build_array(client, seq, shares,
            CASE WHEN rule IN ('*', '|', '=') THEN number ELSE 0 END,
            ticket - priority * PRIORITY, ticket)
            ORDER BY ticket, client, seq) AS parties,
            CASE WHEN bool_or(share <> '') THEN json_agg(
                json_build_array(encode(share, 'hex'), weight) ORDER BY ticket, client, seq)
                END AS shares
            FROM waiting GROUP BY name
    ) SELECT json_build_object(
        'now', us,
        'more', more,
        'clients', (SELECT json_agg(json_build_array(each.client, x.host, x.pid,
                aiolock._listens(each.client)))
            FROM (SELECT aiolock._shown(client) AS client FROM held
                UNION SELECT client FROM waiting) each
            LEFT JOIN aiolock.clients x ON x.id = each.client),
        'names', (SELECT json_agg(json_build_array(
            encode(n, 'hex'),
            (SELECT permits FROM aiolock.names
                WHERE name = n AND NOT keep_until BETWEEN 1 AND us / 1000),
            (SELECT max(ends) FROM aiolock.grants
                WHERE name = n AND client = '-' AND ends > us / 1000),
            (SELECT parties FROM grouped_held WHERE name = n),
            (SELECT parties FROM grouped_waiting WHERE name = n),
            CASE WHEN ws = 0 THEN
                (SELECT count(*) FROM aiolock.grants WHERE name = n AND client <> '-') ELSE 0 END
            ) ORDER BY place) FROM unnest(ns) WITH ORDINALITY AS x (n, place)),
        'shares', (SELECT json_agg(json_build_array( -- an earlier version does not look for them
            (SELECT shares FROM grouped_held WHERE name = n),
            (SELECT shares FROM grouped_waiting WHERE name = n)
            ) ORDER BY place) FROM unnest(ns) WITH ORDINALITY AS x (n, place))
    )::text);
END $$;

-- The status of a name, or a part of it.
CREATE OR REPLACE FUNCTION aiolock.status(
    n bytea, ws bigint, t bigint, c text, s bigint, hs bigint, f bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN aiolock._statuses(ARRAY[n], ws, t, c, s, hs, f, false);
END $$;

-- The status of names behind `start` that begin with `prefix`: up to `most` of them, and fewer if they
-- have more than `parties` waiters and holders together. Each has so many of either at most.
CREATE OR REPLACE FUNCTION aiolock.snapshot(
    prefix bytea, start bytea, most integer, parties bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    n bytea := start;
    ns bytea[] := '{}';
    seen bigint := 0;
    more boolean := false;
BEGIN
    LOOP
        -- Finding the next name takes one look into each index, however many rows a name has.
        SELECT x.name INTO n FROM (
            (SELECT name FROM aiolock.grants WHERE name > n ORDER BY name LIMIT 1)
            UNION ALL
            (SELECT name FROM aiolock.waiters WHERE name > n ORDER BY name LIMIT 1)
        ) x ORDER BY 1 LIMIT 1;
        EXIT WHEN n IS NULL OR substr(n, 1, length(prefix)) <> prefix;
        more := cardinality(ns) >= most OR seen >= parties;
        EXIT WHEN more;
        ns := ns || n;
        seen := seen
            + (SELECT count(*) FROM (SELECT FROM aiolock.grants WHERE name = n LIMIT parties) x)
            + (SELECT count(*) FROM (SELECT FROM aiolock.waiters WHERE name = n LIMIT parties) x);
    END LOOP;
    RETURN aiolock._statuses(ns, parties, (-9223372036854775807)::bigint - 1, '', 0, parties, 0, more);
END $$;


-- Clients

-- The protocol: a client accepts its own, and the next one. (So does the check above.)
CREATE OR REPLACE FUNCTION aiolock.protocol() RETURNS integer LANGUAGE sql AS $$ SELECT 2 $$;

-- The clock, in microseconds.
CREATE OR REPLACE FUNCTION aiolock.clock() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN aiolock._clock();
END $$;

-- The calling connection listens for this client from now on, for as long as it lasts.
CREATE OR REPLACE FUNCTION aiolock.hello(c text, k bigint, h text, p integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF c !~ '^[0-9A-Za-z_-]{1,50}$' THEN
        RAISE EXCEPTION 'no client of aiolock: %', c USING ERRCODE = 'AL002';
    END IF;
    PERFORM pg_advisory_lock(k);
    -- A late copy for an earlier connection has no effect: the keys of a client grow.
    INSERT INTO aiolock.clients AS x VALUES (c, k, h, p)
        ON CONFLICT (id) DO UPDATE SET key = k, host = h, pid = p, seen = now() WHERE x.key < k;
END $$;

CREATE OR REPLACE FUNCTION aiolock.bye(c text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM aiolock.clients WHERE id = c;
END $$;

-- A heartbeat of a client to itself: its arrival proves both connections of the client. The answer has
-- whether the client counts as one that listens, which its own advisory lock shows.
CREATE OR REPLACE FUNCTION aiolock.beat(c text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('aiolock:' || c, 'beat');
    RETURN concat_ws(' ', aiolock._clock(), aiolock._listens(c));
END $$;

-- Send the pushes to other clients that the transactions before this one have left. It has a
-- transaction of its own: a NOTIFY makes all others wait until its transaction is on the disk. This
-- one need not be, for it keeps nothing there.
CREATE OR REPLACE FUNCTION aiolock.flush() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    left_ text := current_setting('aiolock.out', true);
    line text;
    done text;
BEGIN
    IF left_ <> '' THEN
        done := set_config('synchronous_commit', 'off', true);
        FOREACH line IN ARRAY string_to_array(substr(left_, 2), E'\n') LOOP
            done := pg_notify('aiolock:' || split_part(line, ' ', 1),
                substr(line, strpos(line, ' ') + 1));
        END LOOP;
        done := set_config('aiolock.out', '', false);
    END IF;
END $$;

-- See `_notify`. For clients that do not call `go_on`: others do it by that, in parts.
CREATE OR REPLACE FUNCTION aiolock.notify_again(n bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._begin(n, false);
BEGIN
    PERFORM aiolock._notify(n, us, '', 0);
END $$;

-- Forget clients that are gone, and names that were not used for ten minutes after all of their state
-- has ended: `most` of each, at most, and fewer if they have many waiters or holders, so that others
-- need not wait for long. Returns how many; `most` or more if there may be others. One sweep at a time.
CREATE OR REPLACE FUNCTION aiolock.sweep(most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    us bigint := aiolock._clock();
    at_ aiolock.swept;
    m aiolock.names;
    c record;
    used bigint;
    held bigint;
    before aiolock.swept;
    removed bigint;
    ended bigint;
    rows_ bigint := 0; -- of the names that have been looked at
    looked integer := 0;
    forgotten integer := 0;
    looked_at integer := 0;
    gone integer := 0;
BEGIN
    SELECT * INTO at_ FROM aiolock.swept FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- From where the last sweep has stopped: what that one has removed may still be in the index, for
    -- as long as a transaction anywhere in the database sees it.
    FOR m IN SELECT * FROM aiolock.names
        WHERE (due, name) > (at_.due, at_.last) AND due < us / 60000000
        ORDER BY due, name LIMIT most
    LOOP
        EXIT WHEN rows_ >= GRANTS; -- others wait
        looked := looked + 1;
        before := at_;
        at_.due := m.due;
        at_.last := m.name;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended(encode(m.name, 'hex'), 20));
        PERFORM FROM aiolock.names WHERE name = m.name
            AND greatest(keep_until, fence / 1000 + 600000, later) <= us / 1000; -- still
        CONTINUE WHEN NOT FOUND;
        SELECT max(CASE WHEN client = '-' AND seq = 2 THEN number ELSE ends END) + 600000, count(*)
            INTO used, held FROM aiolock.grants WHERE name = m.name;
        rows_ := rows_ + held;
        IF used IS NULL OR used <= us / 1000 THEN
            used := CASE WHEN EXISTS (
                SELECT FROM (SELECT DISTINCT client FROM (SELECT client FROM aiolock.waiters
                    WHERE name = m.name ORDER BY name, ticket, client, seq LIMIT GRANTS) x) w
                WHERE aiolock._listens(w.client)) THEN us / 1000 + 600000 END;
        END IF;
        IF used IS NOT NULL THEN
            UPDATE aiolock.names SET later = used WHERE name = m.name;
            CONTINUE;
        END IF;
        DELETE FROM aiolock.waiters WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM aiolock.waiters WHERE name = m.name
                ORDER BY name, ticket, client, seq LIMIT GRANTS));
        GET DIAGNOSTICS removed = ROW_COUNT;
        -- An open transaction may have checked a grant: it must not make the sweep wait, and fail.
        DELETE FROM aiolock.grants WHERE name = m.name AND fence = ANY (ARRAY(
            SELECT fence FROM aiolock.grants WHERE name = m.name
                ORDER BY name, fence LIMIT GRANTS - removed FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS ended = ROW_COUNT;
        removed := removed + ended;
        IF removed < GRANTS THEN
            removed := removed + aiolock._remove_tombstones(m.name, us);
        END IF;
        IF removed < GRANTS AND EXISTS (
                SELECT FROM aiolock.virtual_times WHERE name = m.name) THEN
            removed := removed + aiolock._forget_accounts(m.name);
        END IF;
        rows_ := rows_ + removed;
        IF EXISTS (SELECT FROM aiolock.waiters WHERE name = m.name)
                OR EXISTS (SELECT FROM aiolock.grants WHERE name = m.name)
                OR EXISTS (SELECT FROM aiolock.tombstones WHERE name = m.name)
                OR EXISTS (SELECT FROM aiolock.virtual_times WHERE name = m.name) THEN
            IF removed >= GRANTS THEN
                at_ := before; -- the next sweep goes on with it
            END IF;
            CONTINUE;
        END IF;
        DELETE FROM aiolock.names WHERE name = m.name;
        forgotten := forgotten + 1;
    END LOOP;
    IF looked < most AND rows_ < GRANTS THEN
        at_.due := 0;
        at_.last := '';
    END IF;
    UPDATE aiolock.swept SET due = at_.due, last = at_.last
        WHERE (due, last) IS DISTINCT FROM (at_.due, at_.last);
    BEGIN
        FOR c IN SELECT id, key FROM aiolock.clients WHERE seen < now() - interval '1 hour'
            ORDER BY seen
        LOOP
            EXIT WHEN gone >= most OR looked_at >= 2 * most; -- many would take long
            looked_at := looked_at + 1;
            IF aiolock._is_held(c.key) THEN
                UPDATE aiolock.clients SET seen = now() WHERE id = c.id AND key = c.key;
            ELSE
                DELETE FROM aiolock.clients WHERE id = c.id AND key = c.key; -- unless it came back
                gone := gone + 1;
            END IF;
        END LOOP;
    EXCEPTION WHEN OTHERS THEN -- the names are forgotten all the same
        RAISE WARNING 'aiolock cannot forget clients that are gone: %', SQLERRM;
        gone := 0;
        looked_at := 0;
    END;
    RETURN greatest(forgotten + gone,
        CASE WHEN looked = most OR rows_ >= GRANTS OR looked_at >= 2 * most THEN most ELSE 0 END);
END $$;

-- For users of a lock, within a transaction of their own: check that the lock `name` is still held
-- under this fence, and keep it so until the transaction ends, even if the lease ends meanwhile: no
-- other can have it before. Raises if it is not held. Returns true, so that it may stand in WHERE.
CREATE OR REPLACE FUNCTION aiolock.check_fence(
    name text, fence bigint, prefix text DEFAULT 'aiolock', kind text DEFAULT 'lock'
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM aiolock.grants g
        -- No backslash: what that means in a text depends on settings of the session.
        WHERE g.name = convert_to(prefix, 'UTF8') || decode('00', 'hex')
            || convert_to(concat(kind, ':', check_fence.name), 'UTF8')
        AND g.fence = check_fence.fence AND g.client <> '-' AND g.ends > aiolock._clock() / 1000
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock % is not held under the fence % any more',
            quote_literal(check_fence.name), check_fence.fence USING ERRCODE = 'AL003';
    END IF;
    RETURN true;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA aiolock FROM PUBLIC;
