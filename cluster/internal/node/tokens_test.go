package node

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestTokenIsRenewed checks that a token in a volume is replaced before it expires. The new token must have the same
// audience and Pod. KON-042 EXT-022
func TestTokenIsRenewed(t *testing.T) {
	// The flag for this maximum does not permit 30 seconds, so the test sets the field. The node renews a token after
	// four fifths of its lifetime, or up to 10 seconds earlier.
	f := newFixture(t, func(c *apiserver.Config) { c.Authentication.Accounts.MaxExpiration = 30 * time.Second })
	f.start(f.options("tokens"))
	f.readyNode("tokens")
	f.createPod("tokens", "main", func(s *corev1.PodSpec) {
		projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "vault", Path: "token", ExpirationSeconds: ptr.To[int64](600),
			},
		}}}
		s.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: projected}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/tokens"}}
	})
	file := hostPath(t, f.configsOf(f.runningPod("main"))[0], "/tokens/token")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	expires, changed := expiry(t, first), time.Time{}
	f.eventually("the token is replaced by a valid one", func(ctx context.Context) bool {
		now := time.Now()
		if now.Sub(changed) > time.Second/2 { // the kubelet syncs a changed Pod immediately
			changed = now
			change := []byte(`{"metadata": {"annotations": {"looked": "` + now.String() + `"}}}`)
			if _, err := f.kube.CoreV1().Pods("default").Patch(ctx, "main", types.MergePatchType, change,
				metav1.PatchOptions{}); err != nil {
				return false
			}
		}
		next, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		if string(next) == string(first) {
			if now.After(expires) {
				t.Fatal("the token has expired and was not replaced")
			}
			return false
		}
		review, err := f.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: string(next), Audiences: []string{"vault"}},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Authenticated &&
			review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] == "main"
	})
}

// expiry returns the time at which a token expires.
func expiry(t *testing.T, token []byte) time.Time {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(string(token)+"..", ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct{ Exp int64 }
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return time.Unix(claims.Exp, 0)
}
