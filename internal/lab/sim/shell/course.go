package shell

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/model"
)

// Choices is the number of candidates in each bucket.
const Choices = choices

// Course is the experiment of figure 6 with Ballast's table, of any size.
type Course struct {
	Pools   [][]model.Share // the servers at first, and after each reconfiguration
	Percent [][]float64     // of connections that are reset by then, for histories of 1 server and more
}

// Play has servers removed and inserted in turns.
func Play(seed uint64, size int, slots uint32, rows, reconfigurations int) Course {
	table := newTablesOf(seed, size, slots, candidates.Columns)
	connections := newPassage(table.owners, rows)
	var course Course
	for n := range reconfigurations + 1 {
		if n > 0 {
			table.reconfigure()
			connections.update(table.owners)
		}
		percent := make([]float64, rows)
		for row := range rows {
			percent[row] = connections.percent(row + 1)
		}
		course.Pools = append(course.Pools, slices.Clone(table.shares))
		course.Percent = append(course.Percent, percent)
	}
	return course
}
