# Functions for the scripts that do in a folder with a server what a page of doc/howto says: its
# blocks, commands and statements, taken from the page.
#
# Source this file after checks.sh.  The pages say 15 and main; VERSION is the server's major.

# shellcheck shell=bash

pages=/tmp/idempotency/doc/howto

# The text of standard input, for this version.
of_version()
{
	sed -E "s|([@/ -])15([-/ ]\|\$)|\\1$VERSION\\2|g"
}

# part PAGE HEADING: what stands below the heading, to the next one.
part()
{
	awk -v heading="$2" '/^```/ { code = !code }
		!code && /^##+ / { inside = $0 ~ "^##+ " && substr($0, index($0, " ") + 1) == heading; next }
		inside' "$pages/$1.md"
}

# code_span PAGE TEXT: the first command in backticks that begins with the text.
code_span()
{
	grep -o "\`$2[^\`]*\`" "$pages/$1.md" | head -n 1 | tr -d '\`' | of_version
}

# blocks PAGE HEADING DIR: each block of the part as DIR/NN.kind (the words after the
# quotes), DIR/NN.block, and DIR/NN.output if a block of output follows.
blocks()
{
	rm -rf "$3" && mkdir -p "$3"
	part "$1" "$2" | of_version | awk -v dir="$3" '
		/^```/ && inside { inside = 0; close(file); next }
		/^```/ {
			inside = 1
			if ($0 != "```text") {
				file = sprintf("%s/%02d.kind", dir, ++n)
				print substr($0, 4) >file
				close(file)
			}
			file = sprintf("%s/%02d.%s", dir, n, $0 == "```text" ? "output" : "block")
			printf "" >file
			next
		}
		inside { print >file }'
}
