-- What the programs of this folder work on; the beginning is that of doc/howto/kafka-consume.md.
-- >>> schema
CREATE TABLE accounts (customer text PRIMARY KEY, owed numeric NOT NULL);
CREATE SEQUENCE reader_generation;          -- never restarted
CREATE TABLE rejected_messages (
    consumer_group text, topic text, kafka_partition int, kafka_offset bigint,
    key bytea, value bytea, sqlstate text, error text,
    rejected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, kafka_partition, kafka_offset));
-- <<<
GRANT SELECT, INSERT, UPDATE ON accounts TO shop;
GRANT USAGE ON SEQUENCE reader_generation TO shop;
GRANT INSERT ON rejected_messages TO shop;
SELECT idempotency.grant_role('producer', 'shop'), idempotency.grant_role('consumer', 'shop');
