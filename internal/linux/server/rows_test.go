package server

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/rowtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestRowsAreThoseOfTheProgram(t *testing.T) {
	rowtest.Same(t, plan.AgentRow{}, serverServed{})
	rowtest.Same(t, plan.PortKey{}, serverServedKey{})
}
