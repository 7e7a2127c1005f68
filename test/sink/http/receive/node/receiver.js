// Receive webhooks into PostgreSQL, each event once.  ../../receive_test.py kills it.
//
// The lines between the marks are those of doc/howto/webhooks.md.

// >>> program
"use strict";
const http = require("http");
const { Pool } = require("pg");
const { Webhook } = require("standardwebhooks");

// several secrets, separated by blanks, while one takes the place of another
const hooks = process.env.WEBHOOK_SECRETS.split(/\s+/).filter(Boolean).map((secret) => new Webhook(secret));
const pool = new Pool({ max: 16 });
pool.on("error", (e) => console.error(e.message));      // a connection at rest was closed

// The event, if one of the secrets has signed it within the last five minutes.
function verified(body, headers) {
	for (const hook of hooks) {
		try {
			hook.verify(body, headers);
			return JSON.parse(body);
		} catch (e) {
			// the next secret
		}
	}
	return null;
}

// The status of the answer, and Retry-After.  Claim and effect commit together.
async function handle(client, id, order) {
	await client.query("BEGIN");
	const { rows: [{ claim }] } = await client.query(
		"SELECT idempotency.claim_event($1::uuid, consumer => 'billing') AS claim", [id]);
	if (claim === "claimed") {
		await client.query("INSERT INTO invoices VALUES ($1, $2, $3)", [order.order, order.total, id]);
		await client.query("SELECT idempotency.complete_event($1::uuid, consumer => 'billing')", [id]);
	}
	const done = await client.query("COMMIT");
	if (done.command !== "COMMIT")
		throw new Error("the transaction was rolled back");
	return [claim === "busy" ? 503 : 204];          // busy: come again; a duplicate was handled before
}

// The same for an effect that cannot be rolled back: lease, send, complete, each committed.
async function sendSms(client, id, sms) {
	const { rows: [{ result, token, pause }] } = await client.query(
		`SELECT result, token, ceil(extract(epoch FROM retry_after))::int AS pause
		 FROM idempotency.lease_event($1::uuid, 'sms')`, [id]);
	if (result === "busy")
		return [503, pause];                    // somebody has it, or died with it: come again when the lease is over
	if (result === "dead")
		return [422];                           // an operator decides
	if (result === "claimed") {
		const sent = await fetch(process.env.SMS_URL, { method: "POST", headers: { "Idempotency-Key": id },
			body: JSON.stringify(sms), signal: AbortSignal.timeout(10000) });
		if (!sent.ok)
			throw new Error(`HTTP ${sent.status}`);
		await client.query("SELECT idempotency.complete_event($1::uuid, 'sms', token => $2)", [id, token]);
	}
	return [204];
}

async function statusFor(url, body, headers) {
	const event = verified(body, headers);
	if (event === null)
		return [401];                           // not from us: the relay makes it a dead letter
	let client, failed;
	try {
		client = await pool.connect();
		return await (url.endsWith("/sms") ? sendSms : handle)(client, headers["webhook-id"], event);
	} catch (e) {
		failed = e;
		console.error(e.message);
		// classes 22 and 23 will never do; everything else may pass
		return [/^2[23]/.test(e.code) ? 422 : 503];
	} finally {
		client?.release(failed);                // after an error with the connection
	}
}

http.createServer((request, response) => {
	const parts = [];
	request.on("data", (part) => parts.push(part));
	request.on("end", async () => {
		const [status, pause] = await statusFor(request.url, Buffer.concat(parts).toString("utf8"), request.headers);
		response.writeHead(status, pause == null ? {} : { "Retry-After": pause }).end();
	});
}).listen(Number(process.argv[2]), "127.0.0.1");
// <<<
