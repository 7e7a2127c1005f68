// A producer and a consumer with node-postgres, and the checks that ../run.sh counts.
//
// The lines between the marks are those of doc/howto/node.md.
'use strict'

const { randomUUID } = require('crypto')
// >>> producer
const { Pool, Client } = require('pg')

// The order and its event commit together, or neither of them does.
async function placeOrder (pool, order, total) {
  return transaction(pool, async client => {
    await client.query('INSERT INTO orders VALUES ($1, $2)', [order, total])
    const { rows } = await client.query(
      "SELECT idempotency.outbox_enqueue('order', $1::text, 'OrderCreated', $2::jsonb) AS id",
      [order, JSON.stringify({ order, total })])
    return rows[0].id
  })
}
// <<<

// >>> commit
async function transaction (pool, work) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const result = await work(client)
    const { command } = await client.query('COMMIT')
    if (command !== 'COMMIT') throw new Error('a statement failed before: nothing is committed, do not acknowledge')
    return result
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  } finally {
    client.release()
  }
}
// <<<

// >>> consumer
// Make one message's effect once. After it has returned, acknowledge all but busy.
async function handle (pool, eventId, payload) {
  return transaction(pool, async client => {
    const { rows: [{ verdict }] } = await client.query(
      "SELECT idempotency.claim_event($1::uuid, consumer => 'billing', wait => $2::interval) AS verdict",
      [eventId, '100 ms'])
    if (verdict === 'claimed') {
      await client.query('INSERT INTO invoices VALUES ($1, $2, $3::uuid)', [payload.order, payload.total, eventId])
      await client.query(
        "SELECT idempotency.complete_event($1::uuid, consumer => 'billing', result => $2::jsonb)",
        [eventId, JSON.stringify({ invoice: payload.order })])
    }
    return verdict
  })
}
// <<<

// >>> batch
const BATCH = `
  WITH message AS (
    SELECT * FROM ROWS FROM (
      idempotency.claim_events($1::uuid[]::text[], consumer => 'billing'),
      unnest($2::jsonb[])
    ) AS m (ord, event_id, result, payload)
  ), effect AS (
    INSERT INTO invoices (order_id, total, event_id)
    SELECT (payload->>'order')::int, (payload->>'total')::numeric, event_id::uuid
    FROM message WHERE result = 'claimed'
    RETURNING event_id
  ), done AS (
    SELECT idempotency.complete_events(ARRAY(SELECT event_id::text FROM effect), consumer => 'billing')
  )
  SELECT result FROM message, done ORDER BY ord`

// The same for messages { eventId, payload }; the verdicts come in their order.
async function handleMany (pool, messages) {
  const { rows } = await pool.query(BATCH, [
    messages.map(message => message.eventId),
    messages.map(message => JSON.stringify(message.payload))])
  return rows.map(row => row.result)
}
// <<<

// Wrong: all statements are sent before the verdict is read. Of a new Client({ pipeline: true }).
async function handleBlindly (client, eventId, payload) {
  await Promise.all([
    client.query('BEGIN'),
    client.query("SELECT idempotency.claim_event($1::uuid, consumer => 'billing')", [eventId]),
    client.query('INSERT INTO invoices VALUES ($1, $2, $3::uuid)', [payload.order, payload.total, eventId]),
    client.query("SELECT idempotency.complete_event($1::uuid, consumer => 'billing')", [eventId]),
    client.query('COMMIT')])
}

// Checks

function check (name, good) {
  console.log(good ? 'ok' : 'NOT OK', name)
}

// Does it fail with that SQLSTATE?
async function fails (sqlstate, promise) {
  return promise.then(() => false, error => error.code === sqlstate)
}

async function main () {
  const pool = new Pool()
  const value = async (query, ...args) =>
    Object.values((await pool.query({ text: query, values: args })).rows[0])[0]
  const invoices = async eventId => Number(await value('SELECT count(*) FROM invoices WHERE event_id = $1::uuid', eventId))

  const eventId = await placeOrder(pool, 1, 99)
  check('an event commits with its row', await value('SELECT enqueued(1)') === '1')
  await transaction(pool, async client => {
    await client.query('INSERT INTO orders VALUES (2, 99)')
    await client.query("SELECT idempotency.outbox_enqueue('order', '2', 'OrderCreated', $1::jsonb)", ['{}'])
    throw new Error('changed my mind')
  }).catch(() => {})
  check('an event is rolled back with its row',
    await value('SELECT enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2)') === '0')

  const payload = { order: 1, total: 99 }
  check('claimed: the effect is made and the result is stored',
    await handle(pool, eventId, payload) === 'claimed' && await invoices(eventId) === 1 &&
    (await value("SELECT idempotency.event_result($1::uuid, 'billing')", eventId)).invoice === 1)
  check('redelivered: duplicate, and one effect',
    await handle(pool, eventId, payload) === 'duplicate' && await invoices(eventId) === 1)
  const upper = eventId.toUpperCase()
  check('an upper-case id is cast to the same event',
    await handle(pool, upper, payload) === 'duplicate' && await invoices(eventId) === 1 &&
    await value("SELECT status FROM idempotency.event_status($1::text, 'billing')", upper) === 'unknown')

  const busy = randomUUID()
  const other = await pool.connect()
  await other.query('BEGIN')
  await other.query("SELECT idempotency.claim_event($1::uuid, 'billing')", [busy])
  check('busy while another session has the event',
    await handle(pool, busy, { order: 3, total: 1 }) === 'busy' && await invoices(busy) === 0)
  await other.query('ROLLBACK')
  const failed = await fails('23505', handle(pool, busy, { order: 1, total: 1 }))
  check('a handler that failed is tried again',
    failed && await handle(pool, busy, { order: 3, total: 1 }) === 'claimed' && await invoices(busy) === 1)

  const once = Array.from({ length: 50 }, (_, n) => ({ eventId: randomUUID(), payload: { order: 100 + n, total: n } }))
  const messages = [...once, ...once]
  const first = await handleMany(pool, messages)
  check('a batch of 100 with repeats is one statement',
    first.slice(0, 50).every(verdict => verdict === 'claimed') &&
    first.slice(50).every(verdict => verdict === 'duplicate') && first.length === 100 &&
    await value('SELECT count(*) FROM invoices WHERE order_id >= 100') === '50' &&
    (await handleMany(pool, messages)).every(verdict => verdict === 'duplicate') &&
    (await handleMany(pool, [])).length === 0)

  await other.query('BEGIN')
  await other.query('SELECT 1/0').catch(() => {})
  const silent = (await other.query('COMMIT')).command === 'ROLLBACK'
  other.release()
  const noticed = await transaction(pool, client => client.query('SELECT 1/0').catch(() => {}))
    .then(() => false, error => /nothing is committed/.test(error.message))
  check('COMMIT of an aborted transaction is noticed', silent && noticed)

  const client = new Client({ pipeline: true })
  await client.connect()
  const blind = { eventId: randomUUID(), payload: { order: 5, total: 1 } }
  await handleBlindly(client, blind.eventId, blind.payload)
  check('a pipelined duplicate fails with ID002, and one statement answers it',
    await fails('ID002', handleBlindly(client, blind.eventId, { order: 6, total: 1 })) &&
    await invoices(blind.eventId) === 1 && (await handleMany(pool, [blind]))[0] === 'duplicate')
  await client.end()

  const enqueue = payload => value("SELECT idempotency.outbox_enqueue('order', '7', 'Lines', $1::jsonb)", payload)
  check('an array is a payload only as JSON.stringify writes it',
    await fails('22P02', enqueue([{ line: 1 }])) && !Array.isArray(await value('SELECT $1::jsonb', [])) &&
    await enqueue(JSON.stringify([{ line: 1 }])) !== null)
  await pool.end()
}

main()
