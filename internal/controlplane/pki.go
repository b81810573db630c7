package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki is a control plane's own certificate authority and the files that its
// components read.
type pki struct {
	dir    string
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	caPEM  []byte
	serial int64
}

const certificateLife = 365 * 24 * time.Hour

func newPKI(dir string, address netip.Addr, services netip.Prefix) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificate folder: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority key: %w", err)
	}
	p := &pki{dir: dir, caKey: key}
	p.ca = p.template("ipam-guard-control-plane")
	p.ca.IsCA, p.ca.BasicConstraintsValid = true, true
	p.ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, p.ca, p.ca, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	p.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	caKeyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}

	serving := p.template("kube-apiserver")
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serving.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	serving.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), address.AsSlice(), services.Masked().Addr().Next().AsSlice()}
	servingPEM, servingKeyPEM, err := p.issue(serving)
	if err != nil {
		return nil, err
	}
	// Kubelets trust what has this certificate to be the API server.
	client := p.template("kube-apiserver-kubelet-client", "system:masters")
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	clientPEM, clientKeyPEM, err := p.issue(client)
	if err != nil {
		return nil, err
	}
	// ServiceAccount tokens are RS256 in real clusters; keep that.
	saKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make service account key: %w", err)
	}
	saPEM := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(saKey)})
	for name, data := range map[string][]byte{
		"ca.crt": p.caPEM, "ca.key": caKeyPEM,
		"apiserver.crt": servingPEM, "apiserver.key": servingKeyPEM,
		"kubelet-client.crt": clientPEM, "kubelet-client.key": clientKeyPEM,
		"sa.key": saPEM,
	} {
		if err := os.WriteFile(p.file(name), data, 0o600); err != nil {
			return nil, fmt.Errorf("write certificate: %w", err)
		}
	}
	return p, nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) template(commonName string, organizations ...string) *x509.Certificate {
	p.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(p.serial),
		Subject:      pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func (p *pki) issue(template *x509.Certificate) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key of %s: %w", template.Subject.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, k.Public(), p.caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate of %s: %w", template.Subject.CommonName, err)
	}
	key, err = encodeKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// clientConfig is the configuration of a user who proves by certificate who
// they are. Client-side throttling is off.
func (p *pki) clientConfig(server, user string, groups ...string) (*rest.Config, error) {
	template := p.template(user, groups...)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	cert, key, err := p.issue(template)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            server,
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: p.caPEM, CertData: cert, KeyData: key},
	}, nil
}

// WriteKubeconfig writes a kubeconfig file that says what cfg says of server,
// certificates and token.
func WriteKubeconfig(path string, cfg *rest.Config) error {
	const name = "ipam-guard"
	k := clientcmdapi.NewConfig()
	k.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	k.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cfg.CertData,
		ClientKeyData:         cfg.KeyData,
		Token:                 cfg.BearerToken,
	}
	k.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	k.CurrentContext = name
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
