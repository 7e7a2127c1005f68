# Ids that are remembered: in our store, and in the usual table.
package Bench::Remembered;
use strict;
use warnings;
use Bench::Server;

# The third is the floor: a row with a uuid as key.
our %table = (ours => $Bench::Server::store, usual => 'bench.conflict', bare => 'bench.floor_claim');

# How an id is made, and the consumer.
my %fill = (
	ours => q{SELECT idempotency.complete_events(c.ids, '%2$s') FROM (SELECT array_agg(event_id) AS ids}
	  . q{ FROM idempotency.claim_events(ARRAY(SELECT %1$s FROM generate_series(1, 100)), '%2$s')) c;},
	usual => q{INSERT INTO bench.conflict (consumer, event_id) SELECT '%2$s', %1$s FROM generate_series(1, 100)}
	  . q{ ON CONFLICT DO NOTHING;});

# One claim and its completion in one statement, and what stands in its place.
my %one = (
	ours => 'SELECT idempotency.claim_event(i.id), idempotency.complete_event(i.id) FROM (SELECT %s AS id OFFSET 0) i;',
	usual => "INSERT INTO bench.conflict (consumer, event_id) SELECT 'default', %s ON CONFLICT DO NOTHING;",
	bare => 'INSERT INTO bench.floor_claim SELECT %s::uuid;');

sub one
{
	my ($side, $ids) = @_;

	return sprintf($one{$side}, "bench.id_$ids()");
}

# Add n ids or a few more, by 100, all clients at once; returns how many.
sub grow
{
	my ($run, $side, $ids, $n, $consumer) = @_;
	my $each = int($n / 100 / $run->{clients} + 0.999);
	my $file = $run->write_script("grow_$side", sprintf($fill{$side}, "bench.id_$ids()", $consumer // 'default') . "\n");

	$run->pgbench('off', $run->load, '-t', $each, '-f', $file);
	return $each * $run->{clients} * 100;
}

1;
