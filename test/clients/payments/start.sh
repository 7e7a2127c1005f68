# "Run it" of doc/howto/payments.md, which shows the lines between the marks.  drive.py runs
# them, those of one language, at free ports and in the test's database.

# The packages are there, and run.sh has built the program in Go.
python3()
{
	[ "$1" = -m ] || command python3 "$@"
}

venv/bin/pip()
{
	:
}

go()
{
	case $1 in
		mod | get) ;;
		run) ./payments "$3" ;;
	esac
}

# >>> start
export PGHOST=localhost PGUSER=pay PGPASSWORD=secret PGDATABASE=app PROVIDER=http://127.0.0.1:8001/charges
python3 provider.py 8001 &
python3 -m venv venv && venv/bin/pip install 'psycopg[binary,pool]' && venv/bin/python api.py 8000 &    # Python, from 3.10 on
go mod init api && go get github.com/jackc/pgx/v5/pgxpool && go run . 8000 &                            # or Go, from 1.19 on
curl -i http://127.0.0.1:8000/payments -H 'Authorization: Bearer secret' -H 'Idempotency-Key: key-2' -d '{"card": "4242", "amount": 5}'
# <<<
