-- JSON documents in one form, and their hash.  A null document is an error: a null
-- hash would be a fingerprint that compares with nothing.

CREATE FUNCTION @extschema@.canonical_json(document jsonb)
RETURNS text
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_canonical_json_fn';
COMMENT ON FUNCTION @extschema@.canonical_json(document jsonb) IS
'the text of RFC 8785 (JCS) of a document; a number that no double can hold keeps all its digits';

CREATE FUNCTION @extschema@.canonical_hash(document jsonb, fields text[] DEFAULT NULL)
RETURNS bytea
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_canonical_hash_fn';
COMMENT ON FUNCTION @extschema@.canonical_hash(document jsonb, fields text[]) IS
'SHA-256 of canonical_json in UTF-8; with fields, which are JSON pointers, of an object with a member per field';
