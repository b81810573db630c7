// Package status is what the manager tells of itself in a ConfigMap, for the
// kubectl plugin and for people.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ConfigMap is the name, in the manager's namespace; Key is the one entry.
const (
	ConfigMap = "ipam-guard-status"
	Key       = "status.json"
)

// Status is the sweeping replica's account of itself.
type Status struct {
	// Updated is when this was written.
	Updated time.Time `json:"updated"`
	Version string    `json:"version"`
	// Identity is the replica that wrote.
	Identity string `json:"identity"`
	// APIGroup is Calico's group in use.
	APIGroup string `json:"apiGroup"`
	// Sweep is on, dry-run or off; Guard is enforce, warn or off.
	Sweep  string  `json:"sweep"`
	Guard  string  `json:"guard"`
	Paused []Pause `json:"paused,omitempty"`
	// LastPass is absent until the first pass ended.
	LastPass *Pass `json:"lastPass,omitempty"`
}

// Pause is one reason why nothing is swept.
type Pause struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// Pass is one walk over all handles.
type Pass struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Handles int       `json:"handles"`
	// Verdicts counts handles by "Outcome/Reason".
	Verdicts map[string]int `json:"verdicts,omitempty"`
	Swept    int            `json:"swept"`
	// WouldSweep is Swept for a dry run.
	WouldSweep int `json:"wouldSweep,omitempty"`
	Conflicts  int `json:"conflicts,omitempty"`
	Failed     int `json:"failed,omitempty"`
	// Error is what ended the pass early.
	Error string `json:"error,omitempty"`
}

// Write puts s into the ConfigMap, creating it when there is none.
func Write(ctx context.Context, client corev1client.ConfigMapInterface, s Status) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: ConfigMap, Labels: map[string]string{"app.kubernetes.io/name": "ipam-guard"}},
		Data:       map[string]string{Key: string(data)},
	}
	_, err = client.Update(ctx, configMap, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, configMap, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// Read gets the status that the manager last wrote.
func Read(ctx context.Context, client corev1client.ConfigMapInterface) (Status, error) {
	configMap, err := client.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return Status{}, fmt.Errorf("read status: %w", err)
	}
	var s Status
	if err := json.Unmarshal([]byte(configMap.Data[Key]), &s); err != nil {
		return Status{}, fmt.Errorf("decode status: %w", err)
	}
	return s, nil
}
