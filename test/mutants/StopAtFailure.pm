
# Copyright (c) 2026, the idempotency developers

=pod

=head1 NAME

StopAtFailure - end a TAP test at its first failed check

=head1 DESCRIPTION

A build that is broken on purpose is caught by one failed check; those after it
would only wait, each for its timeout, for what cannot come any more.  Loaded by
PERL5OPT; the servers are stopped by the END blocks of their test.

=cut

package StopAtFailure;

use strict;
use warnings FATAL => 'all';

use Test::Builder;

my $check = \&Test::Builder::ok;

{
	no warnings 'redefine';
	*Test::Builder::ok = sub {
		local $Test::Builder::Level = $Test::Builder::Level + 1;

		$check->(@_) or exit 1;
		return 1;
	};
}

1;
