package lb

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/rowtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestRowsAreThoseOfTheProgram(t *testing.T) {
	rowtest.Same(t, plan.ServiceRow{}, lbService{})
	rowtest.Same(t, plan.ServerRow{}, lbServer{})
	rowtest.Same(t, plan.SlotRow{}, lbSlot{})
	rowtest.Same(t, plan.VIPKey{}, lbVipKey{})
	rowtest.Same(t, plan.ReturnKey{}, lbReturnKey{})
	rowtest.Same(t, vipPlace{}, lbVipPlace{})
}
