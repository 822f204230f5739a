package replica_test

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/machine/replica/tabletest"
)

func TestMemoryIsATable(t *testing.T) {
	tabletest.Run(t, func(int) replica.Table { return replica.NewMemory() })
}
