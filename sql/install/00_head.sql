/* idempotency 1.0: exactly-once effects for PostgreSQL */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idempotency CASCADE" to load this file. \quit

REVOKE ALL ON SCHEMA @extschema@ FROM PUBLIC;
