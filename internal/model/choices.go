package model

// Implementation constants: what a slot of the placement table has room for, and defaults of choices.
const (
	MaxCandidates     = 4
	MinCandidates     = 2
	DefaultCandidates = 2  // SHELL VI
	MaxHistory        = 4  // owners of one place
	DefaultHistory    = 3  // SHELL VI: 60 downloads over 3 reconfigurations
	DefaultWindow     = 50 // 6LB IV-C
	DefaultMargin     = 10 // 6LB IV-C, percent
)

func (c *Choices) applyDefaults() {
	setDefault(&c.Candidates, 0, DefaultCandidates)
	setDefault(&c.History, 0, DefaultHistory)
	if c.Accept.Policy == AcceptDynamic {
		setDefault(&c.Accept.Threshold, 0, 1)
		setDefault(&c.Accept.Window, 0, DefaultWindow)
		setDefault(&c.Accept.Margin, 0, DefaultMargin)
	}
}
