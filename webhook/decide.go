package webhook

// change is what the mutating half does to a handle.
type change struct {
	// stamp is the annotation's value to write; "" leaves it as it is.
	stamp string
	// hold adds the finalizer.
	hold    bool
	outcome outcome
}

// decideCreate stamps a new handle. A stamp that the client brought is
// replaced: a forged one must never be evidence.
func decideCreate(h *handle, fresh string, guard bool) change {
	return change{
		stamp:   fresh,
		hold:    guard && !h.held() && !h.Spec.Deleted,
		outcome: outcomeStamped,
	}
}

// decideUpdate carries stamp and finalizer through writers that know nothing
// of metadata, as Calico. Such a writer drops both; one that keeps the stamp
// and drops the finalizer does so on purpose, and has its way until Calico
// writes the handle again.
func decideUpdate(old, updated *handle, fresh func() string, guard bool) change {
	// Once Calico has marked the handle as deleted, its next request deletes
	// the object: without a finalizer that takes effect at once.
	mayHold := guard && !updated.held() && !updated.Spec.Deleted
	switch {
	case old.stamp() == "":
		// The API server forbids a new finalizer on a terminating object.
		return change{stamp: fresh(), hold: mayHold && !updated.terminating(), outcome: outcomeStamped}
	case updated.stamp() != "" || updated.held():
		return change{outcome: outcomeUnchanged}
	default:
		// Calico uses the handle: whatever took the finalizer off before, as a
		// sweep that came too late does, it is needed now.
		return change{stamp: old.stamp(), hold: mayHold && (old.held() || !updated.terminating()), outcome: outcomeRestored}
	}
}

// tampered tells whether an update, as it stands after mutation, changes the
// stamp. An update that lacks both stamp and finalizer comes from a writer
// that knows neither, in a moment when the mutating half did not answer: it
// passes, for pod networking must not wait for us.
func tampered(old, updated *handle) bool {
	if old.stamp() == "" {
		return false
	}
	if updated.stamp() == "" {
		return updated.held()
	}
	return updated.stamp() != old.stamp()
}
