# How doc/howto/webhooks.md starts a receiver; it shows the lines between the marks.
# receive_test.py runs them, those of one language, at a free port.

# What the programs import is there.
python3()
{
	[ "$1" = -m ] || command python3 "$@"
}

venv/bin/pip()
{
	:
}

npm()
{
	:
}

go()
{
	case $1 in
		mod) ;;
		run) exec ./receiver "$3" ;;
	esac
}

# >>> start
export WEBHOOK_SECRETS=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3
export PGHOST=localhost PGUSER=billing PGPASSWORD=secret PGDATABASE=billing
python3 -m venv venv && venv/bin/pip install 'psycopg[binary]' standardwebhooks && venv/bin/python receiver.py 8000    # Python
npm install pg standardwebhooks && node receiver.js 8000                                                               # or Node
go mod init receiver && go mod tidy && go run . 8000                                                                   # or Go
# <<<
