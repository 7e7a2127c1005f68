# The tree's own files, for those that build or look at a copy of it.
#
# Source it; the functions want the tree's top as the working directory.

# shellcheck shell=bash

# Their names, each ended by a zero byte: what a commit of the tree as it is would
# hold, or, where there is no git, all but build products.
tree_files()
{
	if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
		git -c safe.directory='*' ls-files -z --cached --others --exclude-standard
	else
		find . -type f ! -path './.git/*' ! -path './build/*' ! -path './src/sink/b*/*' \
			! -name '*.[od]' ! -name '*.so' -printf '%P\0'
	fi | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done
}

# tree_copy DIR: made if it is missing.
tree_copy()
{
	mkdir -p "$1"
	tree_files | tar -c --null -T - -f - | tar -x -C "$1"
}
