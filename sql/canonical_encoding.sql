-- canonical_json and canonical_hash in databases of several encodings: the same
-- hash, or an error where there is no right one.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE TABLE hashes AS SELECT encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}'), 'hex') AS hash,
	encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}', '{/é,/z}'), 'hex') AS of_fields;
SELECT hash, of_fields FROM hashes \gset
\set home :DBNAME
CREATE DATABASE regress_canonical_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE regress_canonical_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE regress_canonical_win TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C';
SET client_min_messages = warning;
\c regress_canonical_latin1
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SET client_encoding = 'UTF8';
SELECT getdatabaseencoding(), encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}'), 'hex') = :'hash' AS same_hash,
	   encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}', '{/é,/z}'), 'hex') = :'of_fields' AS same_of_fields,
	   idempotency.canonical_json('{"é": "ü", "z": 1, "ÿ": 2}');
\c regress_canonical_win
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SET client_encoding = 'UTF8';
SELECT getdatabaseencoding(), encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}'), 'hex') = :'hash' AS same_hash;
-- by UTF-16, though the byte of the euro sign is less than that of é
SELECT idempotency.canonical_json('{"€": 1, "é": 2, "z": 3}');
\c regress_canonical_ascii
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SELECT getdatabaseencoding(), encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}'), 'hex') = :'hash' AS same_hash_of_utf8,
	   encode(idempotency.canonical_hash('{"é": "ü", "z": 1, "ÿ": 2}', '{/é,/z}'), 'hex') = :'of_fields' AS same_of_fields;
\set VERBOSITY default
SELECT idempotency.canonical_json(('["' || E'\351' || '"]')::jsonb);
\set VERBOSITY terse
SELECT idempotency.canonical_hash(('["' || E'\351' || '"]')::jsonb);
SELECT idempotency.canonical_hash(('{"' || E'\351' || '": 1, "a": 2}')::jsonb);
SELECT idempotency.canonical_hash(('{"' || E'\351' || '": 1, "a": 2}')::jsonb, '{/a}') IS NOT NULL AS others_ignored;
SELECT idempotency.canonical_hash('{"a": 1}', ARRAY['/' || E'\351']);
\c :home
DROP DATABASE regress_canonical_latin1;
DROP DATABASE regress_canonical_win;
DROP DATABASE regress_canonical_ascii;
