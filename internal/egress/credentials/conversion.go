package credentials

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd/api"
)

// ForConversion reads the kubeconfig for conversion webhooks. Credentials apply to a webhook only if the user has the
// exact name of the webhook's host. A webhook called by URL receives only a client certificate, because the author of a
// CRD chooses the URL and could collect tokens and passwords. ForConversion returns nil for the file "". The warnings
// list the users that never apply. A file with no other users is an error.
func ForConversion(file string) (s *Source, warnings []string, err error) {
	if file == "" {
		return nil, nil, nil
	}
	if s, err = read(file); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	s.conversion = true
	applies := false
	for _, name := range slices.Sorted(maps.Keys(s.users)) {
		warning, unused := review(name, s.users[name])
		if warning != "" {
			warnings = append(warnings, fmt.Sprintf("user %q: %s", name, warning))
		}
		applies = applies || !unused
	}
	if !applies {
		problems := errors.New("no user applies to a conversion webhook")
		for _, w := range warnings {
			problems = fmt.Errorf("%w; %s", problems, w)
		}
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", file, problems)
	}
	return s, warnings, nil
}

// review returns a warning about the credentials of a user that do not apply to conversion webhooks, and whether none
// of them applies.
func review(name string, user *api.AuthInfo) (warning string, unused bool) {
	headers := user.Token != "" || user.TokenFile != "" || user.Username != "" || user.Password != "" ||
		user.Impersonate != ""
	certificate := hasCertificate(user) || user.Exec != nil
	service := strings.HasSuffix(hostOf(name), ".svc")
	switch {
	case wildcard(name):
		return "ignored: wildcards do not apply to conversion webhooks; name the exact host", true
	case hostOf(name) == "":
		return "ignored: the name is not HOST or HOST:PORT of a webhook", true
	case name == "kubernetes.default.svc" || name == "kubernetes.default.svc:443":
		return "ignored: the server calls itself under its own identity", true
	case !headers && !certificate:
		return "ignored: it has no credentials", true
	case headers && !certificate && !service:
		return "ignored: tokens and passwords are sent only to Services (NAME.NAMESPACE.svc); use a client certificate",
			true
	case headers && !service:
		return "its token or password is not sent, only its client certificate: " + name + " is not a Service", false
	}
	return "", false
}

func wildcard(name string) bool { return strings.Contains(name, "*") }

// hostOf returns the host of HOST or HOST:PORT; "" if name is neither.
func hostOf(name string) string {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return ""
	}
	if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		return ""
	}
	return host
}
