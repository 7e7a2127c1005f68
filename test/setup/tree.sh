# List and copy the tree's own files, for scripts that build or check a copy.
#
# Source this file.  The functions need the tree's top as the working directory.

# shellcheck shell=bash

# Print the names of the tree's files, each ended by a zero byte: the files that a
# commit of the present tree would hold.  Without git: all files but build products.
tree_files()
{
	if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
		git -c safe.directory='*' ls-files -z --cached --others --exclude-standard
	else
		find . -type f ! -path './.git/*' ! -path './build/*' ! -path './src/sink/b*/*' \
			! -name '*.[od]' ! -name '*.so' -printf '%P\0'
	fi | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done
}

# tree_copy DIR: copy the files to DIR, which is made if it is missing.
tree_copy()
{
	mkdir -p "$1"
	tree_files | tar -c --null -T - -f - | tar -x -C "$1"
}
