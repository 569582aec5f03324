package apiserver_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestCredentialsAreNotRecorded checks that no response, log line or audit event of level Metadata contains
// credentials. It sends valid and invalid credentials in every possible part of a request.
func TestCredentialsAreNotRecorded(t *testing.T) {
	o, log := auditOptions(t, t.TempDir(), ""), bytes.Buffer{}
	o.PolicyFile, o.LogOptions.Path = filepath.Join(t.TempDir(), "policy.yaml"), filepath.Join(t.TempDir(), "audit.log")
	writeFile(t, o.PolicyFile, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]")
	s := start(t, apiserver.Config{Audit: o,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	admin := kubernetes.NewForConfigOrDie(s.ClientConfig())
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	valid := request.Status.Token
	invalid, wrong := valid[:len(valid)-8]+"AAAAAAAA", "no-such-token-8271"
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(s.ClientConfig()))
	if err != nil {
		t.Fatal(err)
	}
	var responses strings.Builder
	for header, code := range map[string]int{
		"Authorization: Bearer " + valid: 200, "Authorization: Bearer " + invalid: 401, "Authorization: Bearer " +
			wrong: 401, "Authorization: Basic " + wrong: 401,
		"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io." +
			base64.RawURLEncoding.EncodeToString([]byte(wrong)): 401,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/apis", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
		resp, err := anonymous.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(&responses, resp.Body)
		if resp.Header.Write(&responses); err != nil || resp.Body.Close() != nil || resp.StatusCode != code {
			t.Errorf("%.30s: %d, %v", header, resp.StatusCode, err)
		}
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	audit, err := os.ReadFile(o.LogOptions.Path)
	if err != nil || !bytes.Contains(audit, []byte(`"system:serviceaccount:default:robot"`)) {
		t.Fatalf("%v: the audit log lacks the requests", err)
	}
	for where, text := range map[string]string{"response": responses.String(), "log": log.String(),
		"audit": string(audit)} {
		for what, secret := range map[string]string{
			"valid token": valid[strings.LastIndex(valid, "."):], "invalid token": "AAAAAAAA", "unknown token": wrong,
			"encoded token": base64.RawURLEncoding.EncodeToString([]byte(wrong)),
			"private key":   string(s.ClientConfig().KeyData),
		} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s contains the %s", where, what)
			}
		}
	}
}
