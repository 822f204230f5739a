package wrapper

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/rowtest"
)

func TestCellIsThatOfThePrograms(t *testing.T) { rowtest.Same(t, Cell{}, benchBenchCell{}) }
