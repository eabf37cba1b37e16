package job

import (
	"fmt"
	"slices"
	"strings"
)

// AnyTenant among a producer's tenants lets it enqueue for every one.
const AnyTenant = "*"

// Producer is who enqueues, and for whom it may. A tenant's conversations are its
// own, so whoever enqueues for a tenant can read them.
type Producer struct {
	Name    string
	Tenants []string
}

// May refuses a tenant that is none of the producer's, as a *FieldError.
func (p Producer) May(tenant string) error {
	if slices.Contains(p.Tenants, AnyTenant) || slices.Contains(p.Tenants, tenant) {
		return nil
	}
	return &FieldError{Field: "tenant", Problem: fmt.Sprintf("%s may not enqueue for %q; it may for %s", p.Name, tenant, strings.Join(p.Tenants, ", "))}
}
