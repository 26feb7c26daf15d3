-- The tables of the broker. Running this script again creates only what is missing.

CREATE SCHEMA IF NOT EXISTS kafka;

CREATE TABLE IF NOT EXISTS kafka.topics (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-zA-Z0-9._-]{1,249}$' AND name NOT IN ('.', '..')),
    uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    partitions int NOT NULL DEFAULT 1 CHECK (partitions > 0),
    unlogged boolean NOT NULL DEFAULT false,
    config jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The writing transaction locks the row of a partition and takes offsets from it: offsets have no
-- gaps, and all records before a visible record are visible.
CREATE TABLE IF NOT EXISTS kafka.partitions (
    topic_id int NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition_id int NOT NULL,
    log_start bigint NOT NULL DEFAULT 0,
    next_offset bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition_id)
) WITH (fillfactor = 20);

CREATE TABLE IF NOT EXISTS kafka.messages (
    topic_id int NOT NULL,
    partition_id int NOT NULL,
    "offset" bigint NOT NULL,
    "timestamp" timestamptz NOT NULL,
    key bytea,
    value bytea,
    headers jsonb,
    PRIMARY KEY (topic_id, partition_id, "offset")
);

-- For topics whose records may be lost in a crash of PostgreSQL.
CREATE UNLOGGED TABLE IF NOT EXISTS kafka.unlogged_messages (
    LIKE kafka.messages INCLUDING ALL
);

CREATE OR REPLACE VIEW kafka.records AS
    SELECT t.name AS topic, m.partition_id AS partition, m."offset", m."timestamp", m.key, m.value,
           m.headers
    FROM (SELECT * FROM kafka.messages UNION ALL SELECT * FROM kafka.unlogged_messages) m
    JOIN kafka.topics t ON t.id = m.topic_id;

CREATE SEQUENCE IF NOT EXISTS kafka.producer_ids START 1000;

-- The last batches of every idempotent producer, each [first sequence, last sequence, offset].
CREATE TABLE IF NOT EXISTS kafka.producers (
    producer_id bigint NOT NULL,
    topic_id int NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition_id int NOT NULL,
    epoch smallint NOT NULL,
    batches jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (producer_id, topic_id, partition_id)
) WITH (fillfactor = 50);

-- Producers with ids up to the largest one here may have had rows in kafka.producers that expired.
CREATE TABLE IF NOT EXISTS kafka.expired_producers (producer_id bigint NOT NULL);

CREATE TABLE IF NOT EXISTS kafka.consumer_offsets (
    group_id text NOT NULL,
    topic_id int NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition_id int NOT NULL,
    "offset" bigint NOT NULL,
    leader_epoch int NOT NULL DEFAULT -1,
    metadata text NOT NULL DEFAULT '',
    committed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, topic_id, partition_id)
) WITH (fillfactor = 50);

-- When the offset was committed, or the group last had members: offsets expire some days later.
ALTER TABLE kafka.consumer_offsets
    ADD COLUMN IF NOT EXISTS active_at timestamptz NOT NULL DEFAULT now();

-- The consumer groups that have members, for consoles and commands. The rows count only while a broker
-- holds its lock: it removes those of an earlier broker first. Unlogged: a crash of PostgreSQL ends
-- every membership.
CREATE UNLOGGED TABLE IF NOT EXISTS kafka.groups (
    group_id text PRIMARY KEY,
    state text NOT NULL,
    generation int NOT NULL,
    members jsonb NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
);

-- The bytes of keys and values of 10,000 consecutive offsets, for topics with retention.bytes: the
-- broker sums every record once. Only offsets before counted_to are counted.
CREATE TABLE IF NOT EXISTS kafka.segments (
    topic_id int NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition_id int NOT NULL,
    segment bigint NOT NULL,
    counted_to bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (topic_id, partition_id, segment)
) WITH (fillfactor = 50);

-- Where these tables have been: server, timeline and database. The last one is the present one.
CREATE TABLE IF NOT EXISTS kafka.clusters (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
);

-- Which topics `tailrace shadow` copies to Kafka, and from which offset of each partition. Topics
-- without a row are copied from their first record.
CREATE TABLE IF NOT EXISTS kafka.shadow (
    topic_id int PRIMARY KEY REFERENCES kafka.topics ON DELETE CASCADE,
    enabled boolean NOT NULL DEFAULT true,
    append boolean NOT NULL DEFAULT false,
    starts bigint[] NOT NULL DEFAULT '{}'
);

-- Requests a copy of all present records. The message comes after these records in the WAL, so they
-- are durable when `tailrace shadow` reads it.
CREATE OR REPLACE FUNCTION kafka.shadow_sweep() RETURNS pg_lsn LANGUAGE sql AS $$
    SELECT pg_logical_emit_message(true, 'tailrace.shadow', coalesce(jsonb_agg(
        jsonb_build_array(p.topic_id, p.partition_id, p.next_offset)), '[]')::text)
    FROM kafka.partitions p JOIN kafka.topics t ON t.id = p.topic_id
    WHERE NOT t.unlogged AND p.next_offset > 0
$$;

-- Users. Passwords are not stored: the keys (SCRAM, RFC 5802) verify a password, but cannot be used
-- to log in.
CREATE TABLE IF NOT EXISTS kafka.users (
    name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 256),
    superuser boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS kafka.credentials (
    user_name text NOT NULL REFERENCES kafka.users ON DELETE CASCADE ON UPDATE CASCADE,
    mechanism text NOT NULL CHECK (mechanism IN ('SCRAM-SHA-256', 'SCRAM-SHA-512')),
    salt bytea NOT NULL,
    iterations int NOT NULL CHECK (iterations >= 4096),
    stored_key bytea NOT NULL,
    server_key bytea NOT NULL,
    PRIMARY KEY (user_name, mechanism)
);

-- What users may do; everything else is denied. A pattern is a name, a prefix followed by *, or *.
CREATE TABLE IF NOT EXISTS kafka.acls (
    principal text NOT NULL REFERENCES kafka.users ON DELETE CASCADE ON UPDATE CASCADE,
    resource text NOT NULL CHECK (resource IN ('topic', 'group', 'cluster')),
    pattern text NOT NULL CHECK (pattern <> ''),
    operation text NOT NULL CHECK (operation IN (
        'read', 'write', 'create', 'delete', 'alter', 'describe', 'describe_configs',
        'alter_configs', 'idempotent_write', 'all')),
    PRIMARY KEY (principal, resource, pattern, operation)
);

-- The secret behind the salts of unknown users: a client cannot find out which users exist.
CREATE TABLE IF NOT EXISTS kafka.secrets (name text PRIMARY KEY, value bytea NOT NULL);
INSERT INTO kafka.secrets
VALUES ('salts', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
ON CONFLICT DO NOTHING;

REVOKE ALL ON kafka.users, kafka.credentials, kafka.acls, kafka.secrets FROM PUBLIC;

CREATE OR REPLACE FUNCTION kafka.tell_access() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NOTIFY tailrace_kafka, 'access';
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON kafka.users
    FOR EACH STATEMENT EXECUTE FUNCTION kafka.tell_access();
CREATE OR REPLACE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON kafka.credentials
    FOR EACH STATEMENT EXECUTE FUNCTION kafka.tell_access();
CREATE OR REPLACE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON kafka.acls
    FOR EACH STATEMENT EXECUTE FUNCTION kafka.tell_access();

CREATE OR REPLACE FUNCTION kafka.check_config() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    setting text;
BEGIN
    IF jsonb_typeof(new.config) <> 'object' THEN
        RAISE EXCEPTION 'the config of topic % must be a JSON object', new.name;
    END IF;
    FOREACH setting IN ARRAY ARRAY['retention.ms', 'retention.bytes'] LOOP
        IF new.config ->> setting !~ '^(-1|[0-9]{1,18})$' THEN
            RAISE EXCEPTION '% of topic % must be -1 or a number, got %',
                setting, new.name, new.config ->> setting;
        END IF;
    END LOOP;
    RETURN new;
END $$;

CREATE OR REPLACE TRIGGER check_config BEFORE INSERT OR UPDATE OF config ON kafka.topics
    FOR EACH ROW EXECUTE FUNCTION kafka.check_config();

CREATE OR REPLACE FUNCTION kafka.create_topic(
    name text, partitions int DEFAULT 1, config jsonb DEFAULT '{}', unlogged boolean DEFAULT false
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    new_id int;
BEGIN
    INSERT INTO kafka.topics (name, partitions, config, unlogged)
    VALUES (create_topic.name, create_topic.partitions, create_topic.config, create_topic.unlogged)
    RETURNING id INTO new_id;
    INSERT INTO kafka.partitions (topic_id, partition_id)
    SELECT new_id, n FROM generate_series(0, create_topic.partitions - 1) n;
    NOTIFY tailrace_kafka, 'topics';
    RETURN new_id;
END $$;

-- The hash that Kafka's clients choose the partition of a key with.
CREATE OR REPLACE FUNCTION kafka.murmur2(data bytea) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    word CONSTANT bigint := 4294967295;
    m CONSTANT bigint := 1540483477;
    size int := length(data);
    h bigint := (2538058380 # size) & word;
    k bigint;
    at int := 0;
BEGIN
    WHILE size - at >= 4 LOOP
        k := get_byte(data, at) | (get_byte(data, at + 1) << 8) | (get_byte(data, at + 2) << 16)
             | (get_byte(data, at + 3)::bigint << 24);
        k := (k * m) & word;
        k := k # (k >> 24);
        k := (k * m) & word;
        h := ((h * m) & word) # k;
        at := at + 4;
    END LOOP;
    IF size - at = 3 THEN h := h # (get_byte(data, at + 2)::bigint << 16); END IF;
    IF size - at >= 2 THEN h := h # (get_byte(data, at + 1)::bigint << 8); END IF;
    IF size - at >= 1 THEN
        h := h # get_byte(data, at)::bigint;
        h := (h * m) & word;
    END IF;
    h := h # (h >> 13);
    h := (h * m) & word;
    RETURN h # (h >> 15);
END $$;

-- Writes a record in the transaction of the caller: it commits or rolls back with its other writes.
-- Headers are an object, or an array of [name, value] in which names may repeat.
CREATE OR REPLACE FUNCTION kafka.produce(
    topic text, key bytea, value bytea, headers jsonb DEFAULT NULL, partition int DEFAULT NULL,
    "timestamp" timestamptz DEFAULT clock_timestamp()
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    known kafka.topics;
    number int := produce.partition;
    new_offset bigint;
    pairs jsonb := produce.headers;
BEGIN
    SELECT * INTO known FROM kafka.topics t WHERE t.name = produce.topic;
    IF known.id IS NULL THEN
        RAISE EXCEPTION 'topic % does not exist', produce.topic
            USING HINT = format('SELECT kafka.create_topic(%L);', produce.topic);
    END IF;
    IF number IS NULL THEN
        number := CASE WHEN produce.key IS NULL THEN floor(random() * known.partitions)::int
                 ELSE ((kafka.murmur2(produce.key) & 2147483647) % known.partitions)::int END;
    END IF;
    IF jsonb_typeof(pairs) = 'object' THEN
        SELECT jsonb_agg(jsonb_build_array(pair.key, pair.value)) INTO pairs
        FROM jsonb_each_text(pairs) pair;
    END IF;
    UPDATE kafka.partitions p SET next_offset = next_offset + 1
    WHERE p.topic_id = known.id AND p.partition_id = number
    RETURNING next_offset - 1 INTO new_offset;
    IF new_offset IS NULL THEN
        RAISE EXCEPTION 'topic % has no partition %', produce.topic, number;
    END IF;
    IF known.unlogged THEN
        INSERT INTO kafka.unlogged_messages
        VALUES (known.id, number, new_offset, date_trunc('milliseconds', produce."timestamp"),
                produce.key, produce.value, pairs);
    ELSE
        INSERT INTO kafka.messages
        VALUES (known.id, number, new_offset, date_trunc('milliseconds', produce."timestamp"),
                produce.key, produce.value, pairs);
    END IF;
    PERFORM pg_notify('tailrace_kafka', format('%s:%s', known.id, number));
    RETURN new_offset;
END $$;

CREATE OR REPLACE FUNCTION kafka.produce(
    topic text, key text, value text, headers jsonb DEFAULT NULL, partition int DEFAULT NULL,
    "timestamp" timestamptz DEFAULT clock_timestamp()
) RETURNS bigint LANGUAGE sql AS $$
    SELECT kafka.produce(topic, convert_to(key, 'UTF8'), convert_to(value, 'UTF8'), headers,
                         partition, "timestamp")
$$;
