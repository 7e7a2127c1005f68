-- Requests in databases of several encodings: key, scope and headers are text of the
-- database, the body is bytes; what UTF-8 has not is refused.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SET client_encoding = 'UTF8';
SELECT r.result, idempotency.complete_request('schlüssel', 'é', 200, '{"Title": "Grüße", "Other": "ÿ"}', convert_to('Grüße', 'LATIN1'), 'käufer') FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer') r;
SELECT result, headers, body FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer');
SELECT digest FROM idempotency_data.store_segment_0 \gset
\set home :DBNAME
CREATE DATABASE regress_request_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE regress_request_win TEMPLATE template0 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE regress_request_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';
\c regress_request_latin1
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SET client_encoding = 'UTF8';
SELECT r.result, idempotency.complete_request('schlüssel', 'é', 200, '{"Title": "Grüße", "Other": "ÿ"}', convert_to('Grüße', 'LATIN1'), 'käufer') FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer') r;
SELECT result, headers, octet_length(headers->>'Title') AS octets, body FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer');
SELECT result, body FROM idempotency.claim_request('schlüssel', 'é', '\xfe', 'käufer');
-- the same request whatever the encoding of the database is
SELECT digest = :'digest' AS same_digest FROM idempotency_data.store_segment_0;
-- of the length that the database's bytes have
SELECT result, token FROM idempotency.claim_request(repeat('ü', 1024), repeat('é', 255), consumer => repeat('ä', 255), lease => '1 hour', request => '{"ä": "ö"}') \gset
SELECT idempotency.advance_request(repeat('ü', 1024), repeat('é', 255), :token, repeat('ß', 255), repeat('ä', 255), '["ß"]') IS NOT NULL AS advanced;
SELECT idempotency.fail_request(repeat('ü', 1024), repeat('é', 255), repeat('ö', 1025), repeat('ä', 255), :token, '0');
SELECT result, attempt, recovery_point = repeat('ß', 255) AS point, state FROM idempotency.claim_request(repeat('ü', 1024), repeat('é', 255), consumer => repeat('ä', 255), lease => '1 hour');
SELECT idempotency.claim_request('€', 's');
SELECT idempotency.claim_request('k', repeat('é', 256));
\c regress_request_win
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SELECT idempotency.claim_request(convert_from('\x81', 'SQL_ASCII'), 's');
SELECT idempotency.claim_request('k', convert_from('\x81', 'SQL_ASCII'));
SELECT idempotency.claim_request('k', 's', consumer => convert_from('\x81', 'SQL_ASCII'));
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
SELECT r.result, idempotency.complete_request('k', 's', 200, '{"A": "x"}', '\x81') FROM idempotency.claim_request('k', 's') r;
SELECT result, headers, body FROM idempotency.claim_request('k', 's');
\c regress_request_ascii
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SELECT r.result, idempotency.complete_request('schlüssel', 'é', 200, '{"Title": "Grüße"}', '\xfc', 'käufer') FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer') r;
SELECT result, headers, body FROM idempotency.claim_request('schlüssel', 'é', '\xff', 'käufer');
SELECT digest = :'digest' AS same_digest_of_utf8 FROM idempotency_data.store_segment_0;
SELECT result FROM idempotency.claim_request(E'\351', E'\374', lease => '1 hour');
SELECT result FROM idempotency.claim_request(E'\351', E'\374', lease => '1 hour');
\c :home
DROP DATABASE regress_request_latin1;
DROP DATABASE regress_request_win;
DROP DATABASE regress_request_ascii;
