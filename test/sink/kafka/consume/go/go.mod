module billing

// The oldest Go that is of use here is that of Debian bookworm, and these are the
// newest pgx and franz-go that it compiles.
go 1.19

require (
	github.com/jackc/pgx/v5 v5.5.5
	github.com/twmb/franz-go v1.16.1
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20221227161230-091c0ba34f0a // indirect
	github.com/klauspost/compress v1.17.4 // indirect
	github.com/pierrec/lz4/v4 v4.1.19 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.7.0 // indirect
	golang.org/x/crypto v0.17.0 // indirect
	golang.org/x/text v0.14.0 // indirect
)
