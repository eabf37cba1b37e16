package killtest_test

import (
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent/driver/drivertest"
)

func TestMain(m *testing.M) {
	drivertest.Entry()
	goleak.VerifyTestMain(m)
}
