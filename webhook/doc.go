// Package webhook is admission for IPAM handles. The mutating half stamps each
// handle with its creation owner and carries stamp and finalizer through
// writers that drop them; the validating half refuses to delete a handle that
// a block references. Pod networking never waits for either: what cannot be
// decided is allowed.
package webhook
