package yamltree

import "strings"

// maxTypos is how many typos the name of a key may have to be taken for it: one of short names.
func maxTypos(name string) int {
	if len(name) <= 4 {
		return 1
	}
	return 2
}

// Near returns those of the names that a key is a misspelling of, in either case: the ones with the fewest typos.
func Near(key string, names []string) (found []string) {
	key = strings.ToLower(key)
	fewest := len(key)
	for _, name := range names {
		if len(key)-len(name) > maxTypos(name) || len(name)-len(key) > maxTypos(name) {
			continue
		}
		n := typos(key, name)
		if n > maxTypos(name) || n > fewest {
			continue
		}
		if n < fewest {
			fewest, found = n, nil
		}
		found = append(found, name)
	}
	return found
}

// typos is the distance between two words in letters that are inserted, deleted, replaced, or swapped with their neighbour (optimal string
// alignment).
func typos(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
