package segment

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/budgettest"
)

func TestProgramsLeaveTheVerifierRoom(t *testing.T) { budgettest.Check(t, loadSegment) }
