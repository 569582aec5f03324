package crd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// ownersOf returns "manager operation subresource fields" for each entry of managedFields.
func ownersOf(t object.Tree) (all []string) {
	list, _ := object.Metadata(t)["managedFields"].([]any)
	for _, e := range list {
		e := e.(object.Tree)
		all = append(all, fmt.Sprintf("%v %v %v %s", e["manager"], e["operation"], e["subresource"],
			object.AppendJSON(nil, e["fieldsV1"])))
	}
	return all
}

// TestServerOwnsStatus checks that the server's field manager owns the status that the server writes, as in upstream.
// Only storedVersions has no manager (CRD-041).
func TestServerOwnsStatus(t *testing.T) {
	s := serve(t)
	created := s.mustCreateCRD(crd("example.com", "foos", "Foo", ""))
	condition := `{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}}`
	want := `kube-apiserver Update status {"f:status":{"f:acceptedNames":{"f:kind":{},"f:listKind":{},"f:plural":{},"f:singular":{}},` +
		`"f:conditions":{"k:{\"type\":\"Established\"}":` + condition + `,"k:{\"type\":\"NamesAccepted\"}":` +
		condition + `},"f:observedGeneration":{}}}`
	if owners := ownersOf(created); len(owners) != 2 || owners[0] != want {
		t.Errorf("after create:\ngot  %s\nwant %s", strings.Join(owners, "\n"), want)
	}
	names := created["spec"].(object.Tree)["names"].(object.Tree)
	names["shortNames"] = []any{"f"}
	changed, err := s.updateCRD(created, "")
	if err != nil {
		t.Fatal(err)
	}
	if owners := ownersOf(changed); len(owners) != 2 || !strings.Contains(owners[0], `"f:shortNames":{}`) ||
		!strings.HasPrefix(owners[0], "kube-apiserver") {
		t.Errorf("after update: got %s, want kube-apiserver to own shortNames", strings.Join(owners, "\n"))
	}
}

// TestStatusOfClients checks that a status that a client writes is stored unchanged and owned by the client. If the
// client omits the server's conditions, the next update adds them again (CRD-041).
func TestStatusOfClients(t *testing.T) {
	s := serve(t)
	written := s.mustCreateCRD(crd("example.com", "foos", "Foo", ""))
	status(written)["conditions"] = []any{object.Tree{"type": "Mine", "status": "True",
		"lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "R", "message": "m"}}
	status(written)["observedGeneration"] = int64(77)
	want := string(object.AppendJSON(nil, status(written)))
	written, err := s.updateCRD(written, "status")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(object.AppendJSON(nil, status(written))); got != want {
		t.Errorf("status:\ngot  %s\nwant %s", got, want)
	}
	mine := `test Update status {"f:status":{"f:conditions":{"k:{\"type\":\"Mine\"}":`
	if owners := strings.Join(ownersOf(written), "\n"); !strings.Contains(owners, mine) ||
		strings.Contains(owners, `type\":\"Established`) {
		t.Errorf("got owners\n%s\nwant %s", owners, mine)
	}
	if written, err = s.updateCRD(written, ""); err != nil {
		t.Fatal(err)
	}
	s.expect(written, "Mine", "True/R/m")
	s.expect(written, "NamesAccepted", noConflicts)
	s.expect(written, "Established", established)
	all, _ := status(written)["conditions"].([]any)
	if first, _ := all[0].(object.Tree); first["observedGeneration"] != nil {
		t.Errorf("got the client's condition %v, want it without observedGeneration", first)
	}
}
