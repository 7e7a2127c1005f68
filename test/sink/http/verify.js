// Checks signatures with the reference library of npm.
//
//	node verify.js DIRECTORY FILE
//
// DIRECTORY has node_modules; FILE is a list of {headers, body, secret}, the body in
// base64.  Prints a list of true and false.
"use strict";
const fs = require("fs");
const path = require("path");
const { createRequire } = require("module");

const { Webhook } = createRequire(path.resolve(process.argv[2], "x.js"))("standardwebhooks");

function isTaken(c) {
	const headers = {};
	for (const [name, value] of Object.entries(c.headers))
		headers[name.toLowerCase()] = value;
	try {
		new Webhook(c.secret).verify(Buffer.from(c.body, "base64").toString("utf8"), headers);
		return true;
	} catch (e) {
		if (e.constructor.name !== "WebhookVerificationError" && e.name !== "WebhookVerificationError" && !(e instanceof Error && /signature/i.test(e.message)))
			throw e;
		return false;
	}
}

console.log(JSON.stringify(JSON.parse(fs.readFileSync(process.argv[3], "utf8")).map(isTaken)));
